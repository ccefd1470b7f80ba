package tailrace;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.net.DatagramPacket;
import java.net.DatagramSocket;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.expressions.UserDefinedFunction;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Sees records pass the end of a flow in real-time mode, and tells the driver while the batch is
 * still running: how many, how long after their arrival, and when the first and the last passed.
 *
 * <p>It speaks in datagrams, which never hold a record up: what is not heard is lost, and the
 * numbers that they bear show how much.
 */
public final class Passage implements UDF1<Long, Boolean>, Serializable {
  private static final long serialVersionUID = 1L;
  private static final long EVERY_US = 200_000;
  private static final String BATCH = "streaming.sql.batchId";
  private static final AtomicInteger SPEAKERS = new AtomicInteger();

  private final String host;
  private final int port;
  private final String token;
  private final String sink;
  private final double smallestMs;
  private final double logGamma;
  private transient ThreadLocal<Task> tasks;

  private Passage(
      String host, int port, String token, String sink, double smallestMs, double gamma) {
    this.host = host;
    this.port = port;
    this.token = token;
    this.sink = sink;
    this.smallestMs = smallestMs;
    logGamma = Math.log(gamma);
  }

  /**
   * A filter of the arrival time, in microseconds, that lets every record pass.
   *
   * @param token what the driver knows its own measurements by
   * @param sink the end of the flow that it stands at
   * @param smallestMs the upper end of bin 0
   * @param gamma the ratio of the ends of neighbouring bins
   */
  public static UserDefinedFunction filter(
      String host, int port, String token, String sink, double smallestMs, double gamma) {
    Passage passage = new Passage(host, port, token, sink, smallestMs, gamma);
    return functions.udf(passage, DataTypes.BooleanType).asNondeterministic();
  }

  @Override
  public Boolean call(Long arrivedUs) {
    if (tasks == null) {
      tasks = new ThreadLocal<>();
    }
    TaskContext context = TaskContext.get();
    Task task = tasks.get();
    if (task == null || task.context != context) {
      task = new Task(context);
      tasks.set(task);
    }
    task.see(arrivedUs);
    return Boolean.TRUE;
  }

  /** What one task saw since it last spoke. */
  private final class Task {
    private final TaskContext context;
    private final String name = "jvm-" + ProcessHandle.current().pid() + "-"
        + SPEAKERS.incrementAndGet();
    private final DatagramSocket socket;
    private final InetAddress address;
    private long[] bins = new long[1024];
    private int highest = -1;
    private long count;
    private double mean;
    private double m2;
    private long firstUs;
    private long lastUs;
    private long spokeUs = Clock.nowUs();
    private int number;

    private Task(TaskContext context) {
      this.context = context;
      try {
        address = InetAddress.getByName(host);
        socket = new DatagramSocket();
      } catch (IOException error) {
        throw new UncheckedIOException("There is no socket to report measurements on.", error);
      }
      context.addTaskCompletionListener((TaskCompletionListener) done -> close());
    }

    private void see(Long arrivedUs) {
      long nowUs = Clock.nowUs();
      double ageMs = arrivedUs == null ? 0.0 : Math.max(0.0, (nowUs - arrivedUs) / 1e3);
      if (count == 0) {
        firstUs = nowUs;
      }
      lastUs = nowUs;
      count++;
      double delta = ageMs - mean;
      mean += delta / count;
      m2 += delta * (ageMs - mean);
      int bin = (int) Math.ceil(Math.log(Math.max(1.0, ageMs / smallestMs)) / logGamma - 1e-9);
      if (bin >= bins.length) {
        bins = Arrays.copyOf(bins, Math.max(bin + 1, 2 * bins.length));
      }
      bins[bin]++;
      highest = Math.max(highest, bin);
      if (nowUs - spokeUs >= EVERY_US) {
        speak(nowUs);
      }
    }

    private void close() {
      speak(Clock.nowUs());
      socket.close();
    }

    private void speak(long nowUs) {
      spokeUs = nowUs;
      if (count == 0) {
        return;
      }
      byte[] said = message().getBytes(StandardCharsets.UTF_8);
      try {
        socket.send(new DatagramPacket(said, said.length, address, port));
      } catch (IOException unheard) {
        // the next number will show that one is missing
      }
      Arrays.fill(bins, 0, highest + 1, 0);
      highest = -1;
      count = 0;
      mean = 0;
      m2 = 0;
    }

    private String message() {
      StringBuilder text = new StringBuilder("{\"token\":\"").append(token);
      text.append("\",\"speaker\":\"").append(name).append("\",\"number\":").append(number++);
      text.append(",\"sink\":\"").append(sink).append("\",\"batch\":");
      text.append(context.getLocalProperty(BATCH)).append(",\"partition\":");
      text.append(context.partitionId()).append(",\"first_us\":").append(firstUs);
      text.append(",\"last_us\":").append(lastUs).append(",\"count\":").append(count);
      text.append(",\"mean_ms\":").append(mean).append(",\"m2\":").append(m2).append(",\"bins\":{");
      String comma = "";
      for (int bin = 0; bin <= highest; bin++) {
        if (bins[bin] > 0) {
          text.append(comma).append('"').append(bin).append("\":").append(bins[bin]);
          comma = ",";
        }
      }
      return text.append("}}").toString();
    }
  }
}
