package tailrace.cluster;

import java.lang.reflect.Field;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaFutureAction;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.TaskSchedulerImpl;
import org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.Tuple2;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/** Access to what Spark keeps private about the executors of a session. */
public final class ExecutorPool {
  private static final Duration LONGEST_START = Duration.ofMinutes(1);

  /** The longest time that an executor is held until a job arrives that warms it up. */
  private static final Duration LONGEST_HOLD = Duration.ofSeconds(20);

  /** The property of a job that names the executor it warms up. */
  public static final String WARMS = "tailrace.warms";

  /** The applications whose executors are managed here. */
  private static final Set<String> GUARDED = ConcurrentHashMap.newKeySet();

  /** The jobs that hold executors. */
  private static final ConcurrentMap<String, JavaFutureAction<Void>> HOLDS =
      new ConcurrentHashMap<>();

  /** The executors that must not be held any more, though their hold may be about to begin. */
  private static final Set<String> RELEASED = ConcurrentHashMap.newKeySet();

  /** The hosts of executors, as Spark reported when they joined. */
  private static final ConcurrentMap<String, String> HOSTS = new ConcurrentHashMap<>();

  private ExecutorPool() {}

  /** Whether the number of the session's executors can change. */
  public static boolean isElastic(SparkContext context) {
    return context.schedulerBackend() instanceof CoarseGrainedSchedulerBackend;
  }

  /** An executor of one of the applications that this process may have had. */
  private static String named(SparkContext context, String id) {
    return context.applicationId() + "/" + id;
  }

  private static CoarseGrainedSchedulerBackend backend(SparkContext context) {
    return (CoarseGrainedSchedulerBackend) context.schedulerBackend();
  }

  /** The executors that take tasks: launched, and not about to be removed. */
  public static List<String> ready(SparkContext context) {
    CoarseGrainedSchedulerBackend backend = backend(context);
    TaskSchedulerImpl scheduler = (TaskSchedulerImpl) context.taskScheduler();
    return CollectionConverters.asJava(backend.getExecutorIds()).stream()
        .filter(id -> backend.isExecutorActive(id) && scheduler.isExecutorAlive(id))
        .toList();
  }

  /**
   * Keeps batches away from an executor from the moment that it takes tasks until it is warm.
   *
   * <p>Its slots are held by a job that does nothing. The job that warms it up asks for the same
   * slots; when it is queued, the first job releases them.
   */
  public static void guard(SparkContext context, int slots) {
    if (!GUARDED.add(context.applicationId())) {
      return;
    }
    context.addSparkListener(
        new SparkListener() {
          @Override
          public void onExecutorAdded(SparkListenerExecutorAdded added) {
            HOSTS.put(named(context, added.executorId()), added.executorInfo().executorHost());
            Thread waiter = new Thread(() -> holdWhenAlive(context, added.executorId(), slots));
            waiter.setDaemon(true);
            waiter.start();
          }

          @Override
          public void onJobStart(SparkListenerJobStart started) {
            Properties properties = started.properties();
            String warmed = properties == null ? null : properties.getProperty(WARMS);
            if (warmed != null) {
              release(context, warmed);
            }
          }
        });
  }

  private static void holdWhenAlive(SparkContext context, String id, int slots) {
    TaskSchedulerImpl scheduler = (TaskSchedulerImpl) context.taskScheduler();
    long deadline = System.nanoTime() + LONGEST_START.toNanos();
    try {
      while (!scheduler.isExecutorAlive(id)) {
        if (System.nanoTime() > deadline || context.isStopped()) {
          return;
        }
        Thread.sleep(1);
      }
      String named = named(context, id);
      HOLDS.put(named, hold(context, id, slots));
      if (RELEASED.contains(named)) {
        release(context, id);
      }
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
    }
  }

  /** Occupies the slots of an executor by a job that does nothing, for a limited time. */
  public static JavaFutureAction<Void> hold(SparkContext context, String id, int slots) {
    return placed(context, id, slots).foreachPartitionAsync(rows -> stayOn(id));
  }

  /**
   * Occupies a slot, but only of that executor.
   *
   * <p>The place of a task is only a preference: if the executor is lost, Spark runs the task on
   * another one, where it must not block anything.
   */
  private static void stayOn(String id) throws InterruptedException {
    if (!id.equals(SparkEnv.get().executorId())) {
      return;
    }
    long deadline = System.nanoTime() + LONGEST_HOLD.toNanos();
    while (!TaskContext.get().isInterrupted() && System.nanoTime() < deadline) {
      Thread.sleep(2);
    }
  }

  /** Releases an executor to batches. */
  public static void release(SparkContext context, String id) {
    RELEASED.add(named(context, id));
    JavaFutureAction<Void> hold = HOLDS.remove(named(context, id));
    if (hold != null) {
      hold.cancel(true);
    }
  }

  /**
   * A row for every slot of an executor, each in a partition that must be computed there.
   *
   * <p>The job on these rows does the one-time work on that executor: it starts Python, loads
   * classes, and fetches broadcasts.
   */
  public static Dataset<Row> rowsOn(SparkSession session, String id, int slots) {
    JavaRDD<Row> rows = placed(session.sparkContext(), id, slots);
    return session.createDataFrame(rows, new StructType().add("x", "int"));
  }

  /** A row for every slot of an executor, each in a partition that is computed there. */
  private static JavaRDD<Row> placed(SparkContext context, String id, int slots) {
    String place = "executor_" + HOSTS.get(named(context, id)) + "_" + id;
    List<Tuple2<Row, Seq<String>>> rows =
        Collections.nCopies(slots, new Tuple2<>(RowFactory.create(0), seq(List.of(place))));
    RDD<Row> made = context.makeRDD(seq(rows), ClassTag$.MODULE$.<Row>apply(Row.class));
    return made.toJavaRDD();
  }

  private static <T> Seq<T> seq(List<T> list) {
    return CollectionConverters.asScala(list).toSeq();
  }

  /**
   * Ends some executors, but none that is running a task.
   *
   * @return the executors that were ended
   */
  public static List<String> remove(SparkContext context, List<String> ids) {
    // The session's target number of executors was lowered before, so none is replaced.
    return CollectionConverters.asJava(
        backend(context).killExecutors(seq(ids), false, false, false));
  }

  /**
   * Ends Spark's own allocation of executors. It lets a session on any cluster start with few
   * executors; afterwards it would work against our scaling.
   */
  public static void takeOver(SparkContext context) throws ReflectiveOperationException {
    Field field = SparkContext.class.getDeclaredField("_executorAllocationManager");
    field.setAccessible(true);
    if (context.executorAllocationManager().isDefined()) {
      context.executorAllocationManager().get().stop();
      field.set(context, Option.empty());
    }
  }
}
