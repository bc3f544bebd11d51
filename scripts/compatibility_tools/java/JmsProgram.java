package understudy.compatibility;

import com.rabbitmq.jms.admin.RMQConnectionFactory;
import com.rabbitmq.jms.admin.RMQDestination;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.io.IOException;
import java.net.Socket;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * RabbitMQ's JMS client: transacted sessions over queues and topics, with commits, rollbacks and redelivery counts.
 *
 * <p>A producer sends each order to two queues and two topics in one transaction. A mover takes it from the first queue, and sends
 * it to one more queue and topic, in one transaction. In the end each destination has the same orders, each once.
 */
public final class JmsProgram {
    private static final int ORDERS = 90;
    private static final int WITHDRAWN_EACH = 5;
    private static final int ROLLED_BACK_EACH = 7;
    private static final int RECEIVE_MS = 500;
    private static final int DRAIN_MS = 2_000;
    private static final int MOVED_MS = 90_000;
    private static final List<String> QUEUES = List.of("orders", "audit", "invoices");
    private static final List<String> TOPICS = List.of("placed", "news", "billed");
    private static final List<String> SENT_TO = List.of("orders", "audit", "placed", "news");
    private static final List<String> MOVED_TO = List.of("invoices", "billed");
    private static final List<String> DRAINED = List.of("audit", "invoices", "placed", "news", "billed");

    private final Tally tally = new Tally(DRAINED);
    private final List<String> sent = new ArrayList<>();
    private volatile boolean allSent;
    private volatile boolean redeliveriesAreTold = true;
    private volatile int redeliveries;

    /** A transacted session; after an error a new one, on a new connection. */
    private static final class Place {
        private final String client;
        private final Map<String, MessageConsumer> consumers = new HashMap<>();
        private volatile boolean isLost;
        private Connection connection;
        private Session session;
        private MessageProducer producer;
        private volatile Socket socket;

        Place(String client) throws Exception {
            this.client = client;
            open();
        }

        void open() throws Exception {
            close();
            Books.patiently(() -> {
                try {
                    RMQConnectionFactory factory = new RMQConnectionFactory();
                    factory.setUri(Books.URL);
                    factory.setAmqpConnectionFactoryPostProcessor(inner -> inner.setSocketConfigurator(made -> socket = made));
                    connection = factory.createConnection();
                    connection.setClientID(client);
                    isLost = false;
                    connection.setExceptionListener(error -> isLost = true);
                    session = connection.createSession(true, Session.SESSION_TRANSACTED);
                    producer = session.createProducer(null);
                    connection.start();
                    return null;
                } catch (JMSException error) {
                    close();
                    throw error;
                }
            });
        }

        void close() {
            consumers.clear();
            if (connection != null) {
                try {
                    connection.close();
                } catch (JMSException error) {
                    // it is gone already
                }
                connection = null;
            }
        }

        /** End the connection as a process does that dies: the broker counts what it held as failed. */
        void cut() throws IOException {
            socket.close();
        }

        void send(List<String> names, String text) throws JMSException {
            for (String name : names) {
                producer.send(destination(name), session.createTextMessage(text));
            }
        }

        /**
         * The next message of a queue, or of the durable subscription of a topic; null if none comes in time. On a lost connection
         * the library returns null at once, and tells the loss to the listener alone.
         */
        Message receive(String name, int withinMs) throws JMSException {
            if (isLost) {
                throw new JMSException("the connection is lost");
            }
            if (!consumers.containsKey(name)) {
                consumers.put(name, TOPICS.contains(name)
                        ? session.createDurableSubscriber((Topic) destination(name), "of-" + name)
                        : session.createConsumer(destination(name)));
            }
            return consumers.get(name).receive(withinMs);
        }

        private static Destination destination(String name) {
            Map<String, Object> counted = Map.of("x-queue-type", "quorum", "x-delivery-limit", 50);
            return TOPICS.contains(name)
                    ? new RMQDestination(name, false, false)
                    : new RMQDestination(name, true, false, counted);
        }
    }

    private void produce() throws Exception {
        Place place = new Place("producer");
        for (int number = 0; number < ORDERS; number++) {
            sent.add("order-" + number);
            if (number == ORDERS / 3) {
                Books.kill(1);
            }
            for (int attempt = 0; !produced(place, number, attempt); attempt++) {
                place.open();
            }
        }
        allSent = true;
        place.close();
    }

    private boolean produced(Place place, int number, int attempt) throws IOException {
        try {
            if (number % WITHDRAWN_EACH == 0) {
                place.send(SENT_TO, Tally.WITHDRAWN);
                place.session.rollback();
            }
            place.send(SENT_TO, "order-" + number + "." + attempt);
            if (number == 2 * ORDERS / 3 && attempt == 0) {
                Books.kill(2);
            }
            place.session.commit();
            return true;
        } catch (JMSException error) {
            return false;
        }
    }

    private void move() throws Exception {
        Place place = new Place("mover");
        Set<String> rolledBack = new HashSet<>();
        for (boolean more = true; more; ) {
            try {
                Message message = place.receive("orders", RECEIVE_MS);
                if (message == null) {
                    more = !allSent;
                } else {
                    moveOne(place, message, rolledBack);
                }
            } catch (JMSException error) {
                rolledBack.clear(); // what was given back may not have been counted when the connection was lost
                place.open();
            }
        }
        place.close();
    }

    private void moveOne(Place place, Message message, Set<String> rolledBack) throws JMSException {
        String name = ((TextMessage) message).getText();
        boolean chosen = Integer.parseInt(name.substring("order-".length(), name.indexOf('.'))) % ROLLED_BACK_EACH == 0;
        if (chosen && rolledBack.add(name)) {
            place.send(MOVED_TO, Tally.WITHDRAWN);
            place.session.rollback();
            return;
        }
        if (chosen) {
            redeliveries++;
            boolean told = message.getJMSRedelivered() && message.getIntProperty("JMSXDeliveryCount") >= 2;
            redeliveriesAreTold &= told;
        }
        place.send(MOVED_TO, name);
        place.session.commit();
    }

    private void drain() throws Exception {
        Place place = new Place("drain");
        for (String name : DRAINED) {
            for (Message message; (message = place.receive(name, DRAIN_MS)) != null; ) {
                tally.note(name, ((TextMessage) message).getText());
                place.session.commit();
            }
        }
        place.close();
    }

    /** Subscribe before anything is sent. */
    private static void subscribe() throws Exception {
        Place place = new Place("drain");
        for (String topic : TOPICS) {
            place.receive(topic, 1);
        }
        for (String queue : QUEUES) {
            place.receive(queue, 1);
        }
        place.close();
    }

    /** True if the count of a message rises with each consumer that dies, also through a failover. */
    private static boolean countsAreKept() throws Exception {
        Place place = new Place("counting");
        place.send(List.of("counted"), "counted");
        place.session.commit();
        boolean right = true;
        for (int expected = 1; expected <= 4; expected++) {
            if (expected > 1) {
                place.cut();
            }
            if (expected == 3) {
                Books.kill(3);
            }
            place.open();
            int count = Books.patiently(() -> {
                try {
                    return place.receive("counted", DRAIN_MS).getIntProperty("JMSXDeliveryCount");
                } catch (JMSException | NullPointerException error) {
                    place.open();
                    throw error;
                }
            });
            Books.progress("JMSXDeliveryCount " + count);
            right &= count == expected;
        }
        place.session.commit();
        place.close();
        return right;
    }

    /** True if a selector of a topic is refused with 406, and the refusal names the type of exchange that it takes. */
    private static boolean selectorsAreRefused() throws Exception {
        Place place = new Place("selecting");
        try {
            place.session.createConsumer(Place.destination("placed"), "size > 3").receive(RECEIVE_MS);
            return false;
        } catch (JMSException error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                String text = String.valueOf(cause.getMessage());
                if (text.contains("406") && text.contains("x-jms-topic")) {
                    return true;
                }
            }
            return false;
        } finally {
            place.close();
        }
    }

    public static void main(String[] arguments) throws Exception {
        JmsProgram program = new JmsProgram();
        subscribe();
        boolean refused = selectorsAreRefused();
        Thread mover = new Thread(() -> {
            try {
                program.move();
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        mover.start();
        program.produce();
        mover.join(MOVED_MS);
        program.drain();
        Map<String, Boolean> facts = program.tally.facts();
        facts.put("counts_are_kept", countsAreKept());
        facts.put("redeliveries_are_told", program.redeliveries > 0 && program.redeliveriesAreTold);
        facts.put("selectors_are_refused", refused);
        facts.put("the_mover_has_ended", !mover.isAlive());
        Books.finish(program.sent, program.tally.done("invoices"), facts);
        System.exit(0);
    }
}
