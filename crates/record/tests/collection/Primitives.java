import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/** One primitive of Java under one load; the loads are those of primitives.c. */
public class Primitives {
    static final int THREADS = 4;

    static void turn(String primitive, Object monitor, ReentrantLock lock, ReentrantReadWriteLock rwlock,
            Semaphore semaphore) throws InterruptedException {
        switch (primitive) {
            case "monitor" -> {
                synchronized (monitor) {
                    Thread.sleep(1);
                }
            }
            case "reentrant" -> {
                lock.lock();
                Thread.sleep(1);
                lock.unlock();
            }
            case "rwlock" -> {
                rwlock.writeLock().lock();
                Thread.sleep(1);
                rwlock.writeLock().unlock();
            }
            default -> {
                semaphore.acquire();
                Thread.sleep(1);
                semaphore.release();
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String primitive = arguments[0];
        String load = arguments[1];
        var jobs = new LinkedBlockingQueue<Integer>();
        var monitors = new Object[THREADS];
        var locks = new ReentrantLock[THREADS];
        var rwlocks = new ReentrantReadWriteLock[THREADS];
        var semaphores = new Semaphore[THREADS];
        var threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            monitors[i] = new Object();
            locks[i] = new ReentrantLock();
            rwlocks[i] = new ReentrantReadWriteLock();
            semaphores[i] = new Semaphore(1);
        }
        for (int i = 0; i < THREADS; i++) {
            int at = load.equals("contended") ? 0 : i;
            threads[i] = new Thread(() -> {
                try {
                    if (load.equals("pool")) {
                        while (jobs.take() >= 0) {}
                        return;
                    }
                    for (int round = 0; round < 300; round++) {
                        turn(primitive, monitors[at], locks[at], rwlocks[at], semaphores[at]);
                    }
                } catch (InterruptedException e) {
                    throw new RuntimeException(e);
                }
            }, "worker-" + i);
            threads[i].start();
        }
        for (int i = 0; load.equals("pool") && i < 100; i++) {
            Thread.sleep(10);
            jobs.put(i);
        }
        for (Thread thread : threads) jobs.put(-1);
        for (Thread thread : threads) thread.join();
    }
}
