import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Appends entries with the original's client and reads every acknowledged one back by its index.
 *
 * <p>Arguments: {@code GROUP PEERS COUNT THREADS SIZE}. THREADS calls are in flight, on the one connection the client has.
 * An append that is refused or gets no answer is tried again with the same body, at most 20 times; the wait between two tries
 * is the client's own search for a leader.
 *
 * <p>Standard output: one JSON object: appended, failed (appends without success after all tries), retries, read, wrong (entries
 * that are missing or differ), appendMs, readMs. Exit code 0 only if all COUNT entries were appended and read back.
 */
public final class Client {
    private static final int TRIES = 20;

    public static void main(String[] args) throws Exception {
        String group = args[0], peers = args[1];
        int count = Integer.parseInt(args[2]), threads = Integer.parseInt(args[3]), size = Integer.parseInt(args[4]);
        DLedgerClient client = new DLedgerClient(group, peers);
        client.startup();
        long[] index = new long[count];
        Arrays.fill(index, -1);
        AtomicInteger retries = new AtomicInteger(), read = new AtomicInteger();

        long start = System.nanoTime();
        inParallel(threads, count, i -> {
            for (int t = 0; t < TRIES && index[i] < 0; t++) {
                AppendEntryResponse r = client.append(body(i, size));
                if (r != null && r.getCode() == 200) {
                    index[i] = r.getIndex();
                } else {
                    retries.incrementAndGet();
                }
            }
        });
        long appendMs = (System.nanoTime() - start) / 1_000_000;
        int appended = (int) Arrays.stream(index).filter(x -> x >= 0).count();

        start = System.nanoTime();
        inParallel(threads, count, i -> {
            for (int t = 0; t < TRIES && index[i] >= 0; t++) {
                GetEntriesResponse r = client.get(index[i]);
                if (r != null && r.getCode() == 200 && r.getEntries().size() == 1) {
                    DLedgerEntry e = r.getEntries().get(0);
                    if (e.getIndex() == index[i] && Arrays.equals(e.getBody(), body(i, size))) {
                        read.incrementAndGet();
                    }
                    return;
                }
            }
        });
        long readMs = (System.nanoTime() - start) / 1_000_000;
        System.out.printf("{\"appended\":%d,\"failed\":%d,\"retries\":%d,\"read\":%d,\"wrong\":%d,\"appendMs\":%d,\"readMs\":%d}%n",
            appended, count - appended, retries.get(), read.get(), appended - read.get(), appendMs, readMs);
        client.shutdown();
        System.exit(appended == count && read.get() == count ? 0 : 1);
    }

    private interface Work {
        void at(int i);
    }

    private static void inParallel(int threads, int count, Work work) throws InterruptedException {
        AtomicInteger next = new AtomicInteger();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        for (int t = 0; t < threads; t++) {
            pool.execute(() -> {
                for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
                    work.at(i);
                }
            });
        }
        pool.shutdown();
        pool.awaitTermination(1, TimeUnit.HOURS);
    }

    private static byte[] body(int i, int size) {
        byte[] b = new byte[size];
        byte[] name = ("java-" + i).getBytes(StandardCharsets.UTF_8);
        for (int k = 0; k < size; k++) {
            b[k] = (byte) (k * 31 + i);
        }
        System.arraycopy(name, 0, b, 0, Math.min(name.length, size));
        return b;
    }
}
