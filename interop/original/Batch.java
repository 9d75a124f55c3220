import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.BatchAppendEntryRequest;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Three servers of the original in one JVM, and batches given to the leader within it: no client, no client protocol.
 *
 * <p>Arguments: {@code PEERS BASE BATCH SIZE IN_FLIGHT WARM_MS RUN_MS}: entries a batch, bytes an entry, batches in flight.
 *
 * <p>Standard output: one JSON object: entries (acknowledged within RUN_MS after WARM_MS), failed (batches with another code than 200), ms.
 */
public final class Batch {
    public static void main(String[] args) throws Exception {
        String peers = args[0], base = args[1];
        int batch = Integer.parseInt(args[2]), size = Integer.parseInt(args[3]), inFlight = Integer.parseInt(args[4]);
        long warm = Long.parseLong(args[5]), run = Long.parseLong(args[6]);
        List<DLedgerServer> servers = new ArrayList<>();
        for (String peer : peers.split(";")) {
            DLedgerConfig c = new DLedgerConfig();
            c.setGroup("batch");
            c.setSelfId(peer.split("-")[0]);
            c.setPeers(peers);
            c.setStoreBaseDir(base);
            c.setDiskSpaceRatioToCheckExpired(0.99f);
            c.setDiskSpaceRatioToForceClean(0.99f);
            DLedgerServer s = new DLedgerServer(c);
            s.startup();
            servers.add(s);
        }
        DLedgerServer leader = null;
        for (int i = 0; leader == null; i++) {
            for (DLedgerServer s : servers) {
                leader = s.getMemberState().isLeader() ? s : leader;
            }
            if (i > 3000) {
                throw new IllegalStateException("no leader after 30 s");
            }
            Thread.sleep(10);
        }
        byte[] body = new byte[size];
        new Random(1).nextBytes(body);
        List<byte[]> bodies = Collections.nCopies(batch, body);
        AtomicLong acked = new AtomicLong(), failed = new AtomicLong();
        Semaphore free = new Semaphore(inFlight);
        long start = System.nanoTime(), from = start + warm * 1_000_000, to = from + run * 1_000_000;
        while (System.nanoTime() < to) {
            free.acquire();
            BatchAppendEntryRequest r = new BatchAppendEntryRequest();
            r.setGroup("batch");
            r.setRemoteId(leader.getMemberState().getSelfId());
            r.setBatchMsgs(bodies);
            leader.handleAppend(r).whenComplete((AppendEntryResponse a, Throwable t) -> {
                long now = System.nanoTime();
                if (t != null || a.getCode() != 200) {
                    failed.incrementAndGet();
                } else if (now >= from && now <= to) {
                    acked.addAndGet(batch);
                }
                free.release();
            });
        }
        System.out.printf("{\"entries\":%d,\"failed\":%d,\"ms\":%d}%n", acked.get(), failed.get(), run);
        System.out.flush();
        Runtime.getRuntime().halt(0); // nothing here is to be kept
    }
}
