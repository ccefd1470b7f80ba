package tailrace.handover;

import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.UninterruptibleThread;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * Collects the records of a task into batches for Python, one open batch at a time.
 *
 * <p>A separate thread takes records from the operators below as they arrive. The sender to Python
 * asks for the next batch: it gets the open one as soon as that holds a record and has reached its
 * lifetime, or holds clearly more records than recent batches, or is full, or the input has ended;
 * and it gets an empty one after a long pause, if the chain needs to know how time passes. While
 * Python is busy no batch is requested, and records collect: so batches grow with the load by
 * themselves, up to the maximum size. Then the collecting thread waits, which slows down the
 * source.
 *
 * <p>A lifetime is chosen for a rate. When the rate jumps, batches of that age hold so many more
 * records that processing them uses up the slack in the bound; the driver shortens lifetimes only
 * half a second later. Until then a batch is sent when it is half as large again as usual.
 *
 * <p>There are two pages: records enter one while the other is sent.
 */
final class OpenBatch extends AbstractIterator<Page> {
  /** The most records in a batch, or more if Python processes them within this time. */
  private static final int MANY = 2_000;

  private static final long SOON_NANOS = 5_000_000;

  /** The number of batches that determine the usual number of records. */
  private static final int USUAL_OF = 16;

  /** A batch with this many bytes is full in any case. */
  private static final long MOST_BYTES = 1 << 20;

  /** Batches that may be in flight: the one that Python works on, and the one after it. */
  private static final int WINDOW = Integer.getInteger("tailrace.window", 2);

  private final Iterator<InternalRow> records;
  private final Lifetime lifetime;
  private final TaskContext context;
  private final BufferAllocator allocator;
  private final UninterruptibleThread collector;

  /** Held for some nanoseconds, while a record enters the open page or the page is taken. */
  private final AtomicInteger busy = new AtomicInteger();

  private Page open;
  private Page sent;
  private long openedNanos;
  private volatile long most = MANY;
  private volatile int enough = Integer.MAX_VALUE;
  private double usual;
  private long batches;

  /** For waiting threads. */
  private final ReentrantLock lock = new ReentrantLock();

  private final Condition changed = lock.newCondition();
  private final Condition emptied = lock.newCondition();
  private final ArrayDeque<Sent> underWay = new ArrayDeque<>();
  private long returnedNanos = System.nanoTime();
  private boolean ended;
  private Throwable failure;

  /** A batch that Python has, or will get next. */
  private record Sent(int records, long nanos) {}

  /** {@code fields} are the columns that Python gets. */
  OpenBatch(
      Iterator<InternalRow> records,
      InputProjection projection,
      List<Field> fields,
      Lifetime lifetime,
      TaskContext context) {
    this.records = records;
    this.lifetime = lifetime;
    this.context = context;
    allocator = ArrowUtils.rootAllocator().newChildAllocator("open batch", 0, Long.MAX_VALUE);
    InputProjection.Taker taker = projection.taker(fields, context.partitionId());
    open = new Page(taker, fields, allocator);
    sent = new Page(taker, fields, allocator);
    // Listeners are called last first: by then both the collector and the sender have ended.
    context.addTaskCompletionListener((TaskCompletionListener) done -> free());
    collector = new UninterruptibleThread(this::collect, "tailrace-collector");
    collector.setDaemon(true);
    lifetime.arrive();
  }

  private void free() {
    open.close();
    sent.close();
    allocator.close();
  }

  /** Starts to collect; the task does not end before the collector has. */
  void start() {
    context.addTaskCompletionListener((TaskCompletionListener) done -> stop());
    collector.start();
  }

  private void stop() {
    collector.interrupt();
    boolean interrupted = false;
    while (true) {
      try {
        collector.join();
        break;
      } catch (InterruptedException stopping) {
        interrupted = true;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  // --- the collector ---------------------------------------------------------------------------

  private void collect() {
    TaskContext$.MODULE$.setTaskContext(context);
    Throwable cause = null;
    try {
      while (!Thread.currentThread().isInterrupted() && records.hasNext()) {
        add(records.next());
      }
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
    } catch (Throwable error) { // whatever it is, the task that asks for batches must fail with it
      cause = error;
    } finally {
      finish(cause);
      TaskContext$.MODULE$.unset();
    }
  }

  private void add(InternalRow row) throws InterruptedException {
    while (!enters(row)) {
      awaitRoom();
    }
  }

  /** Puts a record on the open page, unless that is full. */
  private boolean enters(InternalRow row) {
    boolean matters;
    hold();
    try {
      if (isFull()) {
        return false;
      }
      open.add(row);
      boolean first = open.records() == 1;
      if (first) {
        openedNanos = System.nanoTime();
      }
      matters = first || open.records() == enough || isFull();
    } finally {
      letGo();
    }
    if (matters) {
      signal();
    }
    return true;
  }

  private void signal() {
    lock.lock();
    try {
      changed.signal();
    } finally {
      lock.unlock();
    }
  }

  private void awaitRoom() throws InterruptedException {
    lock.lockInterruptibly();
    try {
      while (now(this::isFull)) {
        emptied.await();
      }
    } finally {
      lock.unlock();
    }
  }

  private void finish(Throwable cause) {
    lock.lock();
    try {
      ended = true;
      failure = cause;
      changed.signal();
    } finally {
      lock.unlock();
    }
  }

  // --- the open page ---------------------------------------------------------------------------

  private void hold() {
    while (!busy.compareAndSet(0, 1)) {
      Thread.yield();
    }
  }

  private void letGo() {
    busy.lazySet(0);
  }

  /** Whether a condition holds for the open page; this may change as soon as it returns. */
  private boolean now(BooleanSupplier question) {
    hold();
    try {
      return question.getAsBoolean();
    } finally {
      letGo();
    }
  }

  private boolean hasNone() {
    return open.records() == 0;
  }

  private boolean isEnough() {
    return open.records() >= enough || isFull();
  }

  private boolean isFull() {
    return open.records() >= most || open.bytes() >= MOST_BYTES;
  }

  // --- the sender to Python --------------------------------------------------------------------

  @Override
  public boolean hasNext() {
    lock.lock();
    try {
      boolean ticked = false;
      while (now(this::hasNone) && !ended && !ticked) {
        ticked = changed.awaitNanos(lifetime.tickNanos()) <= 0;
      }
      if (failure != null) {
        throwAsIs(failure);
      }
      return ticked || !now(this::hasNone);
    } catch (InterruptedException stopped) {
      throwAsIs(stopped);
      return false;
    } finally {
      lock.unlock();
    }
  }

  /** The page is the caller's until it asks for the next one. */
  @Override
  public Page next() {
    lock.lock();
    try {
      waitUntilDue();
      turnOver();
      if (sent.records() > 0) {
        expectLike(sent.records());
      }
      underWay.add(new Sent(sent.records(), System.nanoTime()));
      emptied.signal();
      return sent;
    } catch (InterruptedException stopped) {
      throwAsIs(stopped);
      return null;
    } finally {
      lock.unlock();
    }
  }

  private void waitUntilDue() throws InterruptedException {
    while (underWay.size() >= WINDOW) {
      changed.await();
    }
    while (!now(this::isEnough) && !ended) {
      long left = openedNanos + lifetime.nanos() - System.nanoTime();
      if (left <= 0) {
        return;
      }
      changed.awaitNanos(left);
    }
  }

  private void turnOver() {
    sent.clear();
    hold();
    Page full = open;
    open = sent;
    sent = full;
    letGo();
  }

  /** Includes a batch in the usual number of records. */
  private void expectLike(int records) {
    batches++;
    usual += (records - usual) / Math.min(batches, USUAL_OF);
    enough = (int) (1.5 * usual) + 2;
  }

  /** Notes that the results of a batch have come back, and updates how many records are enough. */
  void returned() {
    lock.lock();
    try {
      Sent back = underWay.poll();
      if (back == null) {
        return; // what timers made at the end came of no batch
      }
      long now = System.nanoTime();
      long took = now - Math.max(back.nanos, returnedNanos);
      returnedNanos = now;
      most = Math.max(MANY, back.records * SOON_NANOS / Math.max(1, took));
      changed.signal();
    } finally {
      lock.unlock();
    }
  }

  /** Spark's iterators declare no exceptions, and its runner needs the original one. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> void throwAsIs(Throwable error) throws T {
    throw (T) error;
  }
}
