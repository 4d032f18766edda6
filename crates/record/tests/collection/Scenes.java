import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * Small programs with one bottleneck each: `Scenes SCENE`.
 *
 * <p>`map`: a synchronized map with slow computations. `bin`: computations in one bin of a concurrent map.
 * `queue`: a queue of two places between a fast producer and a slow consumer. `executor`: tasks wait for the
 * only thread of an executor. `barrier`: four threads in phases, one is slow.
 */
public class Scenes {
    interface Action {
        void run() throws Exception;
    }

    static void together(Action... actions) throws Exception {
        Thread[] threads = new Thread[actions.length];
        for (int i = 0; i < threads.length; i++) {
            Action action = actions[i];
            threads[i] = new Thread(() -> {
                try {
                    action.run();
                } catch (Exception e) {
                    e.printStackTrace();
                    System.exit(3);
                }
            }, "worker-" + i);
            threads[i].start();
        }
        for (Thread thread : threads) thread.join();
    }

    static int slow(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
        return 1;
    }

    static void map() throws Exception {
        Map<Integer, Integer> entries = Collections.synchronizedMap(new HashMap<>());
        Action use = () -> {
            for (int i = 0; i < 150; i++) {
                entries.remove(7);
                entries.computeIfAbsent(7, key -> slow(2));
            }
        };
        together(use, use, use, use);
    }

    static void bin() throws Exception {
        ConcurrentHashMap<Integer, Integer> entries = new ConcurrentHashMap<>();
        Action use = () -> {
            for (int i = 0; i < 150; i++) entries.compute(7, (key, old) -> slow(2));
        };
        together(use, use, use, use);
    }

    static void queue() throws Exception {
        BlockingQueue<Integer> places = new ArrayBlockingQueue<>(2);
        together(
            () -> {
                for (int i = 0; i < 400; i++) places.put(i);
            },
            () -> {
                for (int i = 0; i < 400; i++) slow(places.take() < 0 ? 0 : 3);
            });
    }

    static void executor() throws Exception {
        ExecutorService one = Executors.newSingleThreadExecutor();
        Action use = () -> {
            for (int i = 0; i < 100; i++) one.submit(() -> slow(3)).get();
        };
        together(use, use, use, use);
        one.shutdown();
    }

    static void barrier() throws Exception {
        CyclicBarrier phase = new CyclicBarrier(4);
        Action fast = () -> {
            for (int i = 0; i < 200; i++) phase.await();
        };
        together(fast, fast, fast, () -> {
            for (int i = 0; i < 200; i++) slow(phase.await() < 0 ? 0 : 6);
        });
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "map" -> map();
            case "bin" -> bin();
            case "queue" -> queue();
            case "executor" -> executor();
            case "barrier" -> barrier();
            default -> System.exit(2);
        }
    }
}
