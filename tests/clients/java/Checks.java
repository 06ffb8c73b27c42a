import java.io.IOException;
import java.util.Arrays;
import java.util.Objects;
import java.util.function.BooleanSupplier;

/** Checks of the tests. */
class Checks {
    static final String RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then"
        + " return redis.call('del', KEYS[1]) else return 0 end";
    /** The SHA-1 of RELEASE. */
    static final String RELEASE_SHA = "e9f69f2beb755be68b5e456ee2ce9aadfbc4ebf4";

    static void check(String subject, Object got, Object expected) {
        if (!Objects.equals(got, expected)) {
            throw new AssertionError(subject + ": " + got + " instead of " + expected);
        }
    }

    static void checkBetween(String subject, long got, long low, long high) {
        if (got < low || got > high) {
            throw new AssertionError(subject + ": " + got + " instead of " + low + " to " + high);
        }
    }

    static void checkBytes(String subject, byte[] got, byte[] expected) {
        if (!Arrays.equals(got, expected)) {
            throw new AssertionError(subject + ": " + Arrays.toString(got));
        }
    }

    static void checkFails(String subject, Runnable call, String message) {
        try {
            call.run();
        } catch (RuntimeException error) {
            if (!String.valueOf(error.getMessage()).contains(message)) {
                throw new AssertionError(subject + ": another error", error);
            }
            return;
        }
        throw new AssertionError(subject + ": no error");
    }

    static void waitUntil(String event, BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + 30_000_000_000L;
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within 30 s: " + event);
            }
            Thread.sleep(5);
        }
    }

    /** Lets the test restart the server, and waits until it has. */
    static void restartServer() throws IOException {
        System.out.println("restart");
        check("the end of the line after the restart", System.in.read(), (int) '\n');
    }
}
