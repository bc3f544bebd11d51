package understudy.compatibility;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;

/**
 * RabbitMQ's Java client: {@code RpcServer} behind a queue, and {@code RpcClient} with direct reply-to.
 *
 * <p>Both connections recover by themselves. Channels, and what stands on them, the program makes again.
 */
public final class RpcProgram {
    private static final int CALLS = 150;
    private static final int ANSWER_MS = 3_000;
    private static final int RECOVERY_MS = 200;
    private static final String QUEUE = "rpc";

    private final Map<String, Integer> executed = new ConcurrentHashMap<>();
    private RpcClient client;

    private static Connection connected(String name) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(Books.URL);
        factory.setNetworkRecoveryInterval(RECOVERY_MS);
        factory.setTopologyRecoveryEnabled(false);
        return factory.newConnection(name);
    }

    /** Answer calls until the process ends; after a loss with another server, on another channel. */
    private void serve(Connection connection) throws Exception {
        while (true) {
            RpcServer server = Books.patiently(() -> {
                Channel channel = connection.createChannel();
                channel.queueDeclare(QUEUE, true, false, false, null);
                return new RpcServer(channel, QUEUE) {
                    @Override
                    public byte[] handleCall(byte[] body, AMQP.BasicProperties properties) {
                        String call = new String(body, StandardCharsets.UTF_8);
                        executed.merge(call, 1, Integer::sum);
                        return ("answer to " + call).getBytes(StandardCharsets.UTF_8);
                    }
                };
            });
            try {
                server.mainloop();
            } catch (Exception error) {
                // the connection is lost
            }
        }
    }

    private boolean isAnswered(Connection connection, String call) throws Exception {
        try {
            if (client == null) {
                client = new RpcClient(
                        new RpcClientParams().channel(connection.createChannel()).exchange("").routingKey(QUEUE).timeout(ANSWER_MS));
            }
            return client.stringCall(call).equals("answer to " + call);
        } catch (Exception error) {
            client = null;
            throw error;
        }
    }

    public static void main(String[] arguments) throws Exception {
        RpcProgram program = new RpcProgram();
        Connection serving = connected("server");
        Thread server = new Thread(() -> {
            try {
                program.serve(serving);
            } catch (Exception error) {
                error.printStackTrace();
            }
        });
        server.setDaemon(true);
        server.start();
        Connection calling = connected("client");
        List<String> sent = new ArrayList<>();
        boolean right = true;
        for (int number = 0; number < CALLS; number++) {
            if (number == CALLS / 3 || number == 2 * CALLS / 3) {
                Books.kill(number == CALLS / 3 ? 1 : 2);
            }
            String call = "call-" + number;
            sent.add(call);
            right &= Books.patiently(() -> program.isAnswered(calling, call));
        }
        Books.finish(sent, new TreeMap<>(program.executed), Map.of("every_call_has_its_answer", right));
        System.exit(0);
    }
}
