package tailrace.probe;

import com.fasterxml.jackson.core.io.JsonStringEncoder;
import java.io.IOException;
import java.io.Serializable;
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ScalaUDF;
import org.apache.spark.sql.expressions.SparkUserDefinedFunction$;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.util.TaskCompletionListener;
import scala.Option;
import scala.collection.JavaConverters;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import tailrace.pacing.Clock;

/**
 * Observes records at the end of a flow in real-time mode, and reports to the driver while the
 * batch is still running: how many passed, how long after their arrival, and when the first and the
 * last did.
 *
 * <p>It sends datagrams, which never delay a record: those that do not arrive are lost, and their
 * sequence numbers show how many. Errors there do not affect the task.
 */
public final class SinkProbe extends AbstractFunction1<Object, Object> implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final long EVERY_US = 200_000;
  private static final String BATCH = "streaming.sql.batchId";
  private static final AtomicInteger SPEAKERS = new AtomicInteger();

  private final String host;
  private final int port;
  private final String token;
  private final String sink;
  private final Ages.Scale scale;
  private transient ThreadLocal<Task> tasks;

  private SinkProbe(String host, int port, String token, String sink, Ages.Scale scale) {
    this.host = host;
    this.port = port;
    this.token = token;
    this.sink = sink;
    this.scale = scale;
  }

  /**
   * A filter of the arrival time, in microseconds, that lets every record pass.
   *
   * @param token identifies measurements for this driver
   * @param sink the end of the flow that it observes
   * @param smallestMs the upper end of bin 0
   * @param gamma the ratio of the ends of neighbouring bins
   */
  public static UserDefinedFunction filter(
      String host, int port, String token, String sink, double smallestMs, double gamma) {
    SinkProbe probe = new SinkProbe(host, port, token, sink, new Ages.Scale(smallestMs, gamma));
    return SparkUserDefinedFunction$.MODULE$.apply(
            probe, DataTypes.BooleanType, listed(Option.empty()), Option.empty(),
            Option.empty(), true, false);
  }

  /** The probe in a condition, if the condition is just a probe. */
  public static Optional<SinkProbe> in(Expression condition) {
    return condition instanceof ScalaUDF udf && udf.function() instanceof SinkProbe probe
        ? Optional.of(probe)
        : Optional.empty();
  }

  /** Starts to observe a task; this ends by itself. */
  public Task task(TaskContext context) {
    return new Task(context);
  }

  /** Observes one record, if there are Spark operators between the last step and the end. */
  @Override
  public Object apply(Object arrivedUs) {
    if (tasks == null) {
      tasks = new ThreadLocal<>();
    }
    TaskContext context = TaskContext.get();
    Task task = tasks.get();
    if (task == null || task.context != context) {
      task = new Task(context);
      tasks.set(task);
    }
    task.see((Long) arrivedUs);
    return Boolean.TRUE;
  }

  /** What one task has observed since its last report. */
  public final class Task {
    private final TaskContext context;
    private final String name = "jvm-" + ProcessHandle.current().pid() + "-"
        + SPEAKERS.incrementAndGet();
    private DatagramSocket socket;
    private InetAddress address;
    private final Ages ages = new Ages(scale);
    private long firstUs;
    private long lastUs;
    private long spokeUs = Clock.nowUs();
    private int number;
    private int unsent;

    private Task(TaskContext context) {
      this.context = context;
      context.addTaskCompletionListener((TaskCompletionListener) done -> close());
    }

    private void see(Long arrivedUs) {
      long nowUs = Clock.nowUs();
      firstUs = ages.count() == 0 ? nowUs : firstUs;
      lastUs = nowUs;
      ages.add(arrivedUs == null ? 0 : Math.max(0, nowUs - arrivedUs));
      speakIfDue(nowUs);
    }

    /**
     * Observes the records of a batch that has passed since a given time; they passed one after the
     * other, and each took an equal share of the time.
     *
     * @param tags when each had arrived, or null if that is unknown
     */
    public void see(ColumnVector tags, int records, long sinceUs) {
      long nowUs = Clock.nowUs();
      firstUs = ages.count() == 0 ? sinceUs : firstUs;
      lastUs = nowUs;
      double eachUs = (double) (nowUs - sinceUs) / records;
      for (int record = 0; record < records; record++) {
        boolean known = tags != null && !tags.isNullAt(record);
        long passedUs = sinceUs + (long) (record * eachUs);
        ages.add(known ? Math.max(0, passedUs - tags.getLong(record)) : 0);
      }
      speakIfDue(nowUs);
    }

    private void speakIfDue(long nowUs) {
      if (nowUs - spokeUs >= EVERY_US) {
        speak(nowUs);
      }
    }

    private void close() {
      speak(Clock.nowUs());
      if (socket != null) {
        socket.close();
      }
    }

    private void speak(long nowUs) {
      spokeUs = nowUs;
      if (ages.count() == 0) {
        return;
      }
      byte[] said = message().getBytes(StandardCharsets.UTF_8);
      try {
        send(said);
      } catch (IOException unheard) {
        unsent++; // the next one reports this
      }
      ages.clear();
    }

    private void send(byte[] said) throws IOException {
      if (socket == null) {
        address = InetAddress.getByName(host);
        socket = new DatagramSocket();
      }
      socket.send(new DatagramPacket(said, said.length, address, port));
    }

    private String message() {
      StringBuilder text = new StringBuilder("{\"token\":\"").append(token);
      text.append("\",\"speaker\":\"").append(name).append("\",\"number\":").append(number++);
      text.append(",\"unsent\":").append(unsent).append(",\"sink\":\"");
      text.append(JsonStringEncoder.getInstance().quoteAsString(sink)).append("\",\"batch\":");
      text.append(context.getLocalProperty(BATCH)).append(",\"partition\":");
      text.append(context.partitionId()).append(",\"first_us\":").append(firstUs);
      text.append(",\"last_us\":").append(lastUs).append(",\"count\":").append(ages.count());
      text.append(",\"mean_ms\":").append(ages.meanMs()).append(",\"m2\":").append(ages.m2());
      ages.print(text.append(",\"bins\":{"), "\"", "\":", ",");
      return text.append("}}").toString();
    }
  }

  private static <T> Seq<T> listed(T only) {
    return JavaConverters.asScala(List.of(only)).toSeq();
  }
}
