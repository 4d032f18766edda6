import java.util.HashMap;
import java.util.Map;

/** Tellers post to the accounts of a bank: `Bank shared|own SECONDS`. Prints the number of postings. */
public final class Bank {
    private final Map<Integer, Long> accounts = new HashMap<>();

    private synchronized void post(int account) throws InterruptedException {
        accounts.merge(account, 1L, Long::sum);
        Thread.sleep(2);
    }

    public static void main(String[] arguments) throws InterruptedException {
        int tellers = 6;
        long end = System.nanoTime() + (long) (Double.parseDouble(arguments[1]) * 1e9);
        Bank shared = new Bank();
        long[] posted = new long[tellers];
        Thread[] threads = new Thread[tellers];
        for (int i = 0; i < tellers; i++) {
            int own = i;
            Bank bank = arguments[0].equals("shared") ? shared : new Bank();
            threads[i] = new Thread(() -> {
                try {
                    while (System.nanoTime() < end) {
                        bank.post(own);
                        posted[own]++;
                    }
                } catch (InterruptedException stop) {
                    Thread.currentThread().interrupt();
                }
            }, "teller");
            threads[i].start();
        }
        long sum = 0;
        for (int i = 0; i < tellers; i++) {
            threads[i].join();
            sum += posted[i];
        }
        System.out.println(sum);
    }
}
