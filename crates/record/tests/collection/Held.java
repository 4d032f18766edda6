import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.StampedLock;

/** Waits of Java in arrangements that the recorder was not made with: {@code Held ARRANGEMENT THREADS}. */
public class Held {
    static final Object MONITOR = new Object();
    static final ReentrantLock FAIR = new ReentrantLock(true);
    static final StampedLock STAMPED = new StampedLock();
    static final Semaphore SEMAPHORE = new Semaphore(1, true);

    static synchronized void turn() throws InterruptedException {
        Thread.sleep(2);
    }

    static void work(String arrangement) throws InterruptedException {
        for (int round = 0; round < 150; round++) {
            switch (arrangement) {
                case "method" -> turn();
                case "fair" -> {
                    FAIR.lock();
                    Thread.sleep(2);
                    FAIR.unlock();
                }
                case "stamped" -> {
                    long stamp = STAMPED.writeLock();
                    Thread.sleep(2);
                    STAMPED.unlockWrite(stamp);
                }
                case "semaphore" -> {
                    SEMAPHORE.acquire();
                    Thread.sleep(1);
                    SEMAPHORE.release();
                    Thread.sleep(1);
                }
                default -> Thread.sleep(2);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String arrangement = arguments[0];
        int count = Integer.parseInt(arguments[1]);
        if (arrangement.equals("results")) {
            // One job at a time; the main thread waits for its result.
            var pool = Executors.newFixedThreadPool(count);
            for (int round = 0; round < 300; round++) {
                pool.submit(() -> {
                    Thread.sleep(3);
                    return 1;
                }).get();
            }
            pool.shutdown();
            return;
        }
        var jobs = new ArrayBlockingQueue<Integer>(64);
        var threads = new Thread[count];
        for (int i = 0; i < count; i++) {
            threads[i] = new Thread(() -> {
                try {
                    if (arrangement.equals("bursts")) {
                        while (jobs.take() >= 0) {}
                    } else {
                        work(arrangement);
                    }
                } catch (InterruptedException e) {
                    throw new RuntimeException(e);
                }
            }, "worker-" + i);
            threads[i].start();
        }
        for (int i = 0; arrangement.equals("bursts") && i < 80; i++) {
            Thread.sleep(12);
            for (int job = 0; job < count; job++) jobs.put(i);
        }
        for (int i = 0; arrangement.equals("bursts") && i < count; i++) jobs.put(-1);
        for (Thread thread : threads) thread.join();
    }
}
