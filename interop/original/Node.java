import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

/**
 * One server of the original, either generation.
 *
 * <p>Arguments: {@code KEY=VALUE ...}, the bean properties of DLedgerConfig, and {@code statusEveryMs} (default 10). A property that this
 * generation does not have ends the process: a test that sets it means it.
 *
 * <p>Standard output carries one JSON object per line, whenever what it says has changed: role, term, leader, begin, end, commit
 * (-1 where the log is empty). commit is read before end, so a line with commit > end shows a fault of the server, not of this reader.
 */
public final class Node {
    public static void main(String[] args) throws Exception {
        DLedgerConfig config = new DLedgerConfig();
        long every = 10;
        for (String arg : args) {
            int eq = arg.indexOf('=');
            if (eq < 0) {
                throw new IllegalArgumentException("not KEY=VALUE: " + arg);
            }
            String key = arg.substring(0, eq), value = arg.substring(eq + 1);
            if (key.equals("statusEveryMs")) {
                every = Long.parseLong(value);
            } else {
                set(config, key, value);
            }
        }
        DLedgerServer server = new DLedgerServer(config);
        server.startup();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        report(server, every);
    }

    private static void set(DLedgerConfig config, String key, String value) throws ReflectiveOperationException {
        String setter = "set" + Character.toUpperCase(key.charAt(0)) + key.substring(1);
        for (Method m : DLedgerConfig.class.getMethods()) {
            if (m.getName().equals(setter) && m.getParameterCount() == 1) {
                m.invoke(config, parse(m.getParameterTypes()[0], value));
                return;
            }
        }
        throw new IllegalArgumentException("DLedgerConfig has no " + key);
    }

    private static Object parse(Class<?> type, String value) {
        if (type == int.class) {
            return Integer.valueOf(value);
        } else if (type == long.class) {
            return Long.valueOf(value);
        } else if (type == float.class) {
            return Float.valueOf(value);
        } else if (type == boolean.class) {
            return Boolean.valueOf(value);
        }
        return value;
    }

    private static void report(DLedgerServer server, long every) throws Exception {
        // The generations keep these two numbers in different places.
        boolean old = has(server.getDLedgerStore(), "getLedgerBeginIndex");
        String last = "";
        while (true) {
            Object store = server.getDLedgerStore();
            long commit = number(old ? store : server.getMemberState(), "getCommittedIndex");
            long end = number(store, "getLedgerEndIndex");
            long begin = old ? number(store, "getLedgerBeginIndex") : number(store, "getLedgerBeforeBeginIndex") + 1;
            String leader = server.getMemberState().getLeaderId();
            String now = String.format("{\"role\":\"%s\",\"term\":%d,\"leader\":\"%s\",\"begin\":%d,\"end\":%d,\"commit\":%d}",
                server.getMemberState().getRole(), server.getMemberState().currTerm(), leader == null ? "" : leader, begin, end, commit);
            if (!now.equals(last)) {
                System.out.println(now);
                last = now;
            }
            Thread.sleep(every);
        }
    }

    private static boolean has(Object o, String getter) {
        for (Method m : o.getClass().getMethods()) {
            if (m.getName().equals(getter)) {
                return true;
            }
        }
        return false;
    }

    private static long number(Object o, String getter) throws ReflectiveOperationException {
        Method m = o.getClass().getMethod(getter);
        m.setAccessible(true);
        try {
            return (Long) m.invoke(o);
        } catch (InvocationTargetException e) {
            throw new IllegalStateException(getter, e.getCause());
        }
    }
}
