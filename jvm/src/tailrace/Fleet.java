package tailrace;

import java.lang.reflect.Field;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
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

/** What Spark keeps to itself of the executors of a session. */
public final class Fleet {
  private static final Duration LONGEST_START = Duration.ofMinutes(1);

  /** Python sees a new executor within a tenth of a second, and then has a job to plan. */
  private static final Duration HOLD = Duration.ofMillis(600);

  /** The applications whose executors are seen to. */
  private static final Set<String> GUARDED = ConcurrentHashMap.newKeySet();

  /** Where executors are, as Spark told when they came. */
  private static final ConcurrentMap<String, String> HOSTS = new ConcurrentHashMap<>();

  private Fleet() {}

  /** Whether the session has executors that come and go. */
  public static boolean isElastic(SparkContext context) {
    return context.schedulerBackend() instanceof CoarseGrainedSchedulerBackend;
  }

  private static CoarseGrainedSchedulerBackend backend(SparkContext context) {
    return (CoarseGrainedSchedulerBackend) context.schedulerBackend();
  }

  /** The executors that take tasks: launched, and not about to go. */
  public static List<String> ready(SparkContext context) {
    CoarseGrainedSchedulerBackend backend = backend(context);
    TaskSchedulerImpl scheduler = (TaskSchedulerImpl) context.taskScheduler();
    return CollectionConverters.asJava(backend.getExecutorIds()).stream()
        .filter(id -> backend.isExecutorActive(id) && scheduler.isExecutorAlive(id))
        .toList();
  }

  /**
   * Sees to it that batches leave an executor alone from the moment that it takes tasks, for as long
   * as it takes to come and warm it up.
   */
  public static void guard(SparkContext context, int slots) {
    if (!GUARDED.add(context.applicationId())) {
      return;
    }
    context.addSparkListener(
        new SparkListener() {
          @Override
          public void onExecutorAdded(SparkListenerExecutorAdded added) {
            HOSTS.put(added.executorId(), added.executorInfo().executorHost());
            Thread waiter = new Thread(() -> holdWhenAlive(context, added.executorId(), slots));
            waiter.setDaemon(true);
            waiter.start();
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
      placed(context, id, slots).foreachPartitionAsync(rows -> Thread.sleep(HOLD.toMillis()));
    } catch (InterruptedException stopped) {
      Thread.currentThread().interrupt();
    }
  }

  /**
   * No rows at all, in one partition for every slot of an executor, which must be computed there.
   *
   * <p>What is made of them does everything on that executor that has to be done once: start
   * Python, load classes, fetch what was broadcast.
   */
  public static Dataset<Row> nothingOn(SparkSession session, String id, int slots) {
    JavaRDD<Row> rows = placed(session.sparkContext(), id, slots).filter(row -> false);
    return session.createDataFrame(rows, new StructType().add("x", "int"));
  }

  /** A row for every slot of an executor, each in a partition that is computed there. */
  private static JavaRDD<Row> placed(SparkContext context, String id, int slots) {
    String place = "executor_" + HOSTS.get(id) + "_" + id;
    List<Tuple2<Row, Seq<String>>> rows =
        Collections.nCopies(slots, new Tuple2<>(RowFactory.create(0), seq(List.of(place))));
    RDD<Row> made = context.makeRDD(seq(rows), ClassTag$.MODULE$.<Row>apply(Row.class));
    return made.toJavaRDD();
  }

  private static <T> Seq<T> seq(List<T> list) {
    return CollectionConverters.asScala(list).toSeq();
  }

  /**
   * Ends some executors, but none that has a task to finish.
   *
   * @return those that are ended
   */
  public static List<String> remove(SparkContext context, List<String> ids) {
    // The number of executors that the session wants was lowered before, so none is replaced.
    return CollectionConverters.asJava(
        backend(context).killExecutors(seq(ids), false, false, false));
  }

  /**
   * Ends Spark's own allocation of executors. It is how a session on any cluster begins with few
   * executors; from then on it would pull against whoever else decides their number.
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
