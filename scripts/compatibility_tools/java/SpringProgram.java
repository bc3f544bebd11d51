package understudy.compatibility;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.transaction.RabbitTransactionManager;
import org.springframework.transaction.support.TransactionTemplate;

/**
 * Spring AMQP: a {@code RabbitTemplate} in transactions, and a transacted listener container that sends on what it gets.
 *
 * <p>A producer sends each job to a queue and to a topic exchange in one transaction. A listener sends it from the queue to the
 * next one, within the transaction of its delivery; of some jobs it fails at first. In the end each destination has the same jobs.
 */
public final class SpringProgram {
    private static final int JOBS = 90;
    private static final int WITHDRAWN_EACH = 5;
    private static final int FAILED_EACH = 7;
    private static final int RECOVERY_MS = 200;
    private static final int DRAIN_MS = 2_000;
    private static final int MOVED_MS = 90_000;
    private static final List<String> QUEUES = List.of("jobs", "copies", "results");
    private static final List<String> DRAINED = List.of("copies", "results");

    private final CachingConnectionFactory connections = new CachingConnectionFactory(URI.create(Books.URL));
    private final RabbitTemplate template = new RabbitTemplate(connections);
    private final TransactionTemplate transactions = new TransactionTemplate(new RabbitTransactionManager(connections));
    private final RabbitAdmin admin = new RabbitAdmin(connections);
    private final Tally tally = new Tally(DRAINED);
    private final List<String> sent = new ArrayList<>();
    private final Set<String> failed = ConcurrentHashMap.newKeySet();
    private final Set<String> redelivered = ConcurrentHashMap.newKeySet();

    private SpringProgram() {
        template.setChannelTransacted(true);
        TopicExchange exchange = new TopicExchange("jobs.done");
        admin.declareExchange(exchange);
        for (String name : QUEUES) {
            Queue queue = new Queue(name);
            admin.declareQueue(queue);
            if (name.equals("copies")) {
                admin.declareBinding(BindingBuilder.bind(queue).to(exchange).with("copy.#"));
            }
        }
    }

    private SimpleMessageListenerContainer listener() {
        SimpleMessageListenerContainer container = new SimpleMessageListenerContainer(connections);
        container.setQueueNames("jobs");
        container.setChannelTransacted(true);
        container.setPrefetchCount(4);
        container.setRecoveryInterval(RECOVERY_MS);
        container.setFailedDeclarationRetryInterval(RECOVERY_MS);
        container.setMessageListener(this::take);
        return container;
    }

    private void take(Message message) {
        String name = new String(message.getBody());
        int number = Integer.parseInt(name.substring("job-".length(), name.indexOf('.')));
        if (number % FAILED_EACH == 0 && failed.add(name)) {
            template.convertAndSend("", "results", Tally.WITHDRAWN);
            throw new IllegalStateException(name + " fails at first");
        }
        if (failed.contains(name) && message.getMessageProperties().isRedelivered()) {
            redelivered.add(name);
        }
        template.convertAndSend("", "results", name);
    }

    private void produce() throws Exception {
        for (int number = 0; number < JOBS; number++) {
            String job = "job-" + number;
            sent.add(job);
            if (number == JOBS / 3) {
                Books.kill(1);
            }
            boolean kills = number == 2 * JOBS / 3;
            int[] attempt = {0};
            boolean withdraws = number % WITHDRAWN_EACH == 0;
            Books.patiently(() -> {
                if (withdraws) {
                    transactions.executeWithoutResult(status -> {
                        send(Tally.WITHDRAWN);
                        status.setRollbackOnly();
                    });
                }
                String name = job + "." + attempt[0]++;
                transactions.executeWithoutResult(status -> {
                    send(name);
                    if (kills && attempt[0] == 1) {
                        killNow();
                    }
                });
                return null;
            });
        }
    }

    private void send(String text) {
        template.convertAndSend("", "jobs", text);
        template.convertAndSend("jobs.done", "copy.of.it", text);
    }

    private static void killNow() {
        try {
            Books.kill(2);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    private void awaitMoved() throws InterruptedException {
        long deadline = System.currentTimeMillis() + MOVED_MS;
        while (System.currentTimeMillis() < deadline) {
            try {
                if (admin.getQueueInfo("results").getMessageCount() >= admin.getQueueInfo("copies").getMessageCount()) {
                    return;
                }
            } catch (RuntimeException error) {
                // the connection is lost
            }
            Thread.sleep(RECOVERY_MS);
        }
    }

    private void drain() {
        for (String queue : DRAINED) {
            while (Boolean.TRUE.equals(transactions.execute(status -> {
                Message message = template.receive(queue, DRAIN_MS);
                if (message != null) {
                    tally.note(queue, new String(message.getBody()));
                }
                return message != null;
            }))) {
                // the next one
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        SpringProgram program = new SpringProgram();
        SimpleMessageListenerContainer listener = program.listener();
        listener.start();
        program.produce();
        program.awaitMoved();
        listener.stop();
        program.drain();
        Map<String, Boolean> facts = program.tally.facts();
        facts.put("every_failure_is_redelivered", !program.failed.isEmpty() && program.redelivered.containsAll(program.failed));
        Books.finish(program.sent, program.tally.done("results"), facts);
        System.exit(0);
    }
}
