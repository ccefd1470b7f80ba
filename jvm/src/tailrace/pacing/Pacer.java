package tailrace.pacing;

import java.lang.reflect.Field;
import java.util.concurrent.TimeUnit;
import org.apache.spark.util.Clock;

/**
 * Decides when a micro-batch query may cut its next batch.
 *
 * <p>Spark's trigger asks a clock to wait until the next batch is due. In place of that clock, a
 * pacer makes the interval a value that can change while the query runs, for any source, and can
 * hold a query between two batches, where stopping it interrupts nothing.
 */
public final class Pacer implements Clock {
  private long intervalNanos;
  private long lastCutNanos = System.nanoTime();
  private long lastCutUs;
  private boolean held;
  private boolean parked;

  private Pacer(long intervalNanos) {
    this.intervalNanos = intervalNanos;
  }

  /**
   * Takes over the trigger of a running query; called from within its first batch, when the
   * trigger exists and its thread is not waiting.
   *
   * @param execution the query's StreamExecution
   */
  public static Pacer install(Object execution, double intervalMs)
      throws ReflectiveOperationException {
    Object trigger = field(execution.getClass(), "triggerExecutor").get(execution);
    Pacer pacer = new Pacer(nanos(intervalMs));
    field(trigger.getClass(), "clock").set(trigger, pacer);
    // The trigger's own interval only decides when it warns that a batch was late.
    field(trigger.getClass(), "intervalMs").setLong(trigger, TimeUnit.DAYS.toMillis(1));
    return pacer;
  }

  private static Field field(Class<?> type, String name) throws NoSuchFieldException {
    for (Class<?> here = type; here != null; here = here.getSuperclass()) {
      try {
        Field field = here.getDeclaredField(name);
        field.setAccessible(true);
        return field;
      } catch (NoSuchFieldException absent) {
        // declared in a superclass, or nowhere
      }
    }
    throw new NoSuchFieldException(type.getName() + "." + name);
  }

  private static long nanos(double ms) {
    return (long) (ms * 1e6);
  }

  /** Sets the time between the cuts of two batches, from the next one on; 0 is back to back. */
  public synchronized void setInterval(double intervalMs) {
    intervalNanos = nanos(intervalMs);
    notifyAll();
  }

  /** When the current batch was cut, in microseconds since the epoch. */
  public synchronized long lastCutUs() {
    return lastCutUs;
  }

  /** Lets the current batch finish and no other begin. */
  public synchronized void hold() {
    held = true;
    notifyAll();
  }

  /** Lets a held query go on. */
  public synchronized void release() {
    held = false;
    parked = false;
    notifyAll();
  }

  /** Waits until the query is held between two batches; false after a timeout. */
  public synchronized boolean awaitHeld(long timeoutMs) throws InterruptedException {
    long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
    while (!parked) {
      long left = deadline - System.nanoTime();
      if (left <= 0) {
        return false;
      }
      TimeUnit.NANOSECONDS.timedWait(this, left);
    }
    return true;
  }

  @Override
  public synchronized long waitTillTime(long ignored) {
    try {
      waitForNextCut();
    } catch (InterruptedException stopped) {
      throwAsIs(stopped);
    }
    return getTimeMillis();
  }

  private void waitForNextCut() throws InterruptedException {
    while (true) {
      if (held) {
        parked = true;
        notifyAll();
        wait();
        continue;
      }
      long now = System.nanoTime();
      long left = lastCutNanos + intervalNanos - now;
      if (left <= 0) {
        // If on time, cuts keep their rhythm; if late, the rhythm restarts from now.
        lastCutNanos = left > -TimeUnit.MILLISECONDS.toNanos(2) ? now + left : now;
        lastCutUs = tailrace.pacing.Clock.nowUs();
        return;
      }
      TimeUnit.NANOSECONDS.timedWait(this, left);
    }
  }

  /** Spark stops a query by interrupting it, through an interface that declares no exception. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> void throwAsIs(Throwable error) throws T {
    throw (T) error;
  }

  @Override
  public long getTimeMillis() {
    return System.currentTimeMillis();
  }

  @Override
  public long nanoTime() {
    return System.nanoTime();
  }
}
