import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Exchanger;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.Phaser;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * Small programs with one bottleneck each: `Mixed SCENE`. `list`: threads add to a synchronized list, with a
 * slow element. `notify`: a lock made of wait and notify. `phaser`: four threads in phases, one is slow.
 * `latch`: threads wait for a slow one. `exchange`: two threads exchange buffers, one is slow. `writers`: all
 * threads write under a read-write lock. `forkjoin`: tasks compute. `timer`: a scheduled task.
 */
public class Mixed {
    interface Work {
        void run(int index) throws Exception;
    }

    static void inThreads(int count, Work work) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int index = i;
            Thread thread = new Thread(() -> {
                try {
                    work.run(index);
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
            }, "worker-" + i);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) thread.join();
    }

    static class Slow {
        @Override
        public boolean equals(Object other) {
            try {
                Thread.sleep(2);
            } catch (InterruptedException e) {
                return false;
            }
            return this == other;
        }
    }

    static boolean isHeld;
    static final Object monitor = new Object();

    static void hold() throws Exception {
        synchronized (monitor) {
            while (isHeld) monitor.wait();
            isHeld = true;
        }
        Thread.sleep(2);
        synchronized (monitor) {
            isHeld = false;
            monitor.notify();
        }
    }

    static long compute(long steps) {
        long x = 1;
        for (long i = 0; i < steps; i++) x = x * 6364136223846793005L + 1442695040888963407L;
        return x;
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "list" -> {
                List<Object> list = Collections.synchronizedList(new ArrayList<>());
                list.add(new Object());
                inThreads(5, index -> {
                    for (int i = 0; i < 80; i++) list.contains(new Slow());
                });
            }
            case "notify" -> inThreads(5, index -> {
                for (int i = 0; i < 80; i++) hold();
            });
            case "phaser" -> {
                Phaser phaser = new Phaser(4);
                inThreads(4, index -> {
                    for (int i = 0; i < 100; i++) {
                        Thread.sleep(index == 0 ? 6 : 1);
                        phaser.arriveAndAwaitAdvance();
                    }
                });
            }
            case "latch" -> {
                for (int round = 0; round < 20; round++) {
                    CountDownLatch latch = new CountDownLatch(4);
                    inThreads(4, index -> {
                        Thread.sleep(index == 0 ? 30 : 1);
                        latch.countDown();
                        latch.await();
                    });
                }
            }
            case "exchange" -> {
                Exchanger<Integer> exchanger = new Exchanger<>();
                inThreads(2, index -> {
                    for (int i = 0; i < 150; i++) {
                        if (index == 0) Thread.sleep(4);
                        exchanger.exchange(i);
                    }
                });
            }
            case "writers" -> {
                ReentrantReadWriteLock lock = new ReentrantReadWriteLock();
                inThreads(5, index -> {
                    for (int i = 0; i < 80; i++) {
                        lock.writeLock().lock();
                        Thread.sleep(2);
                        lock.writeLock().unlock();
                    }
                });
            }
            case "forkjoin" -> {
                AtomicLong sum = new AtomicLong();
                ForkJoinPool pool = new ForkJoinPool(4);
                List<java.util.concurrent.ForkJoinTask<?>> tasks = new ArrayList<>();
                for (int i = 0; i < 400; i++) tasks.add(pool.submit(() -> sum.addAndGet(compute(8_000_000))));
                for (var task : tasks) task.get();
                pool.shutdown();
                if (sum.get() == 42) System.out.println();
            }
            case "timer" -> {
                var timer = Executors.newScheduledThreadPool(2);
                timer.scheduleAtFixedRate(() -> { }, 5, 5, java.util.concurrent.TimeUnit.MILLISECONDS);
                Thread.sleep(800);
                timer.shutdown();
            }
            default -> System.exit(2);
        }
    }
}
