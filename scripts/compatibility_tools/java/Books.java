package understudy.compatibility;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;

/**
 * Parts that all Java programs share, as {@code programs/books.py} has them for Python: the broker's address, and lines for
 * {@code scripts/compatibility}. Names and texts contain no quotation marks.
 */
final class Books {
    /** The one address that the program knows. */
    static final String URL = System.getenv("PROGRAM_URL");

    private static final BufferedReader ANSWERS =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static final int ATTEMPTS = 600;
    private static final int PAUSE_MS = 100;

    private Books() {}

    /** Have the primary killed, and return when it is dead: what follows meets the failover. */
    static void kill(int number) throws IOException {
        say("{\"kill\": " + number + "}");
        ANSWERS.readLine();
    }

    /** Say what the program is at. */
    static void progress(String text) {
        say("{\"progress\": \"" + text + "\"}");
    }

    /** Tell what was sent, what was executed how often, and which facts of the program hold. */
    static void finish(Collection<String> sent, Map<String, Integer> done, Map<String, Boolean> facts) {
        String ids = sent.stream().map(id -> "\"" + id + "\"").collect(Collectors.joining(", "));
        say("{\"result\": {\"sent\": [" + ids + "], \"done\": " + object(done) + ", \"facts\": " + object(facts) + "}}");
    }

    /** Do something again until it succeeds, for a minute at most. */
    static <T> T patiently(Callable<T> attempt) throws Exception {
        for (int number = 1; ; number++) {
            try {
                return attempt.call();
            } catch (Exception error) {
                if (number == ATTEMPTS) {
                    throw error;
                }
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    private static String object(Map<String, ?> values) {
        return values.entrySet().stream()
                .map(each -> "\"" + each.getKey() + "\": " + each.getValue())
                .collect(Collectors.joining(", ", "{", "}"));
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
