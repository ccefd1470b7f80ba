package tailrace;

import java.util.ArrayList;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.UninterruptibleThread;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * Collects the records of a task into batches for Python, one open batch at a time.
 *
 * <p>A thread of its own takes records from the operators below as they come. Whoever sends to
 * Python asks for the next batch: it gets the open one as soon as it holds a record and is as old
 * as its lifetime, or is full, or the input is at its end; and an empty one when there was none for
 * long, if the chain wants to know how time passes. While Python is busy nobody asks, and
 * records gather: so batches grow with the load by themselves, up to the most that one may hold,
 * where the collecting thread waits and the source feels it.
 */
final class OpenBatch extends AbstractIterator<Iterator<InternalRow>> {
  /** The most records of a batch: enough that the fixed cost of sending one no longer counts. */
  static final int MOST = 2_000;

  /** Batches that may be under way: one that Python works on, and one for it to go on with. */
  private static final int WINDOW = Integer.getInteger("tailrace.window", 2);

  /** The column, last of the input, that is stamped when a record enters the open batch. */
  static final String STAMP = "_tailrace_read";

  private final Iterator<InternalRow> records;
  private final Lifetime lifetime;
  private final TaskContext context;
  private final UnsafeProjection projection;
  private final int stamp;
  private final UninterruptibleThread collector;

  private final ReentrantLock lock = new ReentrantLock();
  private final Condition changed = lock.newCondition();
  private final Condition emptied = lock.newCondition();
  private ArrayList<InternalRow> open = new ArrayList<>();
  private long openedNanos;
  private int underWay;
  private boolean ended;
  private Throwable failure;

  OpenBatch(
      Iterator<InternalRow> records, StructType schema, Lifetime lifetime, TaskContext context) {
    this.records = records;
    this.lifetime = lifetime;
    this.context = context;
    projection = UnsafeProjection.create(schema);
    int last = schema.length() - 1;
    stamp = last >= 0 && schema.fields()[last].name().equals(STAMP) ? last : -1;
    collector = new UninterruptibleThread(this::collect, "tailrace-collector");
    collector.setDaemon(true);
    lifetime.arrive();
  }

  /** Begins to collect; the task does not end before the collector has. */
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

  private void collect() {
    TaskContext$.MODULE$.setTaskContext(context);
    Throwable cause = null;
    try {
      while (!Thread.currentThread().isInterrupted() && records.hasNext()) {
        add(kept(records.next()));
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

  /** A copy of a row that the operators below will use again. */
  private InternalRow kept(InternalRow row) {
    UnsafeRow copy = row instanceof UnsafeRow unsafe ? unsafe.copy() : projection.apply(row).copy();
    if (stamp >= 0) {
      copy.setLong(stamp, Clock.nowUs());
    }
    return new GenericInternalRow(new Object[] {copy});
  }

  private void add(InternalRow row) throws InterruptedException {
    lock.lockInterruptibly();
    try {
      while (open.size() >= MOST) {
        emptied.await();
      }
      open.add(row);
      if (open.size() == 1) {
        openedNanos = System.nanoTime();
        changed.signal();
      } else if (open.size() == MOST) {
        changed.signal();
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

  @Override
  public boolean hasNext() {
    lock.lock();
    try {
      boolean ticked = false;
      while (open.isEmpty() && !ended && !ticked) {
        ticked = changed.awaitNanos(lifetime.tickNanos()) <= 0;
      }
      if (failure != null) {
        throwAsIs(failure);
      }
      return ticked || !open.isEmpty();
    } catch (InterruptedException stopped) {
      throwAsIs(stopped);
      return false;
    } finally {
      lock.unlock();
    }
  }

  @Override
  public Iterator<InternalRow> next() {
    lock.lock();
    try {
      waitUntilDue();
      ArrayList<InternalRow> batch = open;
      underWay++;
      open = new ArrayList<>(Math.min(MOST, 2 * batch.size()));
      emptied.signal();
      return new Rows(batch);
    } catch (InterruptedException stopped) {
      throwAsIs(stopped);
      return null;
    } finally {
      lock.unlock();
    }
  }

  /** Says that the results of a batch have come back. */
  void returned() {
    lock.lock();
    try {
      underWay--;
      changed.signal();
    } finally {
      lock.unlock();
    }
  }

  private void waitUntilDue() throws InterruptedException {
    while (underWay >= WINDOW) {
      changed.await();
    }
    while (open.size() < MOST && !ended) {
      long left = openedNanos + lifetime.nanos() - System.nanoTime();
      if (left <= 0) {
        return;
      }
      changed.awaitNanos(left);
    }
  }

  /** Spark's iterators declare no exceptions, and its runner wants the original one. */
  @SuppressWarnings("unchecked")
  private static <T extends Throwable> void throwAsIs(Throwable error) throws T {
    throw (T) error;
  }

  private static final class Rows extends AbstractIterator<InternalRow> {
    private final ArrayList<InternalRow> rows;
    private int next;

    Rows(ArrayList<InternalRow> rows) {
      this.rows = rows;
    }

    @Override
    public boolean hasNext() {
      return next < rows.size();
    }

    @Override
    public InternalRow next() {
      return rows.get(next++);
    }
  }
}
