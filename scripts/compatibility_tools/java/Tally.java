package understudy.compatibility;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * What came to each destination. A message is named {@code NUMBER.ATTEMPT}: whoever does not know if a commit took place does the
 * work again under the next name, so that each name is of one transaction. What must never come is named {@code withdrawn}.
 */
final class Tally {
    static final String WITHDRAWN = "withdrawn";

    private final Map<String, Map<String, Integer>> names = new TreeMap<>();

    Tally(Iterable<String> destinations) {
        destinations.forEach(each -> names.put(each, new HashMap<>()));
    }

    synchronized void note(String destination, String name) {
        names.get(destination).merge(name, 1, Integer::sum);
    }

    /** Executions by number: how many names of each number came to {@code destination}. */
    synchronized Map<String, Integer> done(String destination) {
        Map<String, Integer> found = new TreeMap<>();
        names.get(destination).forEach((name, count) -> {
            if (!name.equals(WITHDRAWN)) {
                found.merge(name.substring(0, name.indexOf('.')), count, Integer::sum);
            }
        });
        return found;
    }

    /** The facts that hold for transactions which are atomic over all destinations. */
    synchronized Map<String, Boolean> facts() {
        Map<String, Boolean> facts = new TreeMap<>();
        List<Map<String, Integer>> all = new ArrayList<>(names.values());
        facts.put("all_destinations_have_the_same", all.stream().allMatch(each -> each.keySet().equals(all.get(0).keySet())));
        facts.put("nothing_came_twice", all.stream().allMatch(each -> each.values().stream().allMatch(count -> count == 1)));
        facts.put("nothing_came_of_a_rollback", all.stream().noneMatch(each -> each.containsKey(WITHDRAWN)));
        return facts;
    }
}
