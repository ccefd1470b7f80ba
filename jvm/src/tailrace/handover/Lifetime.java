package tailrace.handover;

import java.io.Serializable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/**
 * How long the open batch of a chain may wait for more records, and how long for the first.
 *
 * <p>The driver sets both for a chain of a flow. A task uses the values from when its batch was
 * planned; if driver and tasks share a JVM, as in local mode, a change of the lifetime reaches
 * running tasks at once.
 */
public final class Lifetime implements Serializable {
  private static final long serialVersionUID = 1L;

  /** The values set by the driver, by flow and chain; empty on executors. */
  private static final ConcurrentMap<String, ConcurrentMap<String, Values>> FLOWS =
      new ConcurrentHashMap<>();

  private final String flow;
  private final String chain;
  private final long planned;
  private final long tickNanos;
  private transient Values live;

  private Lifetime(String flow, String chain) {
    this.flow = flow;
    this.chain = chain;
    Values values = find(flow, chain);
    planned = values == null ? 0 : values.nanos;
    tickNanos = values == null ? Long.MAX_VALUE : values.tickNanos;
  }

  /** The current lifetime, for a batch that is being planned. */
  static Lifetime of(String flow, String chain) {
    return new Lifetime(flow, chain);
  }

  /** Sets the lifetime of a chain's open batches; 0 sends all records whenever Python is free. */
  public static void set(String flow, String chain, double ms) {
    values(flow, chain).nanos = Math.round(ms * 1e6);
  }

  /** Sends an empty batch to a chain when no record arrived for this long, so that time passes. */
  public static void setTick(String flow, String chain, double ms) {
    values(flow, chain).tickNanos = Math.round(ms * 1e6);
  }

  /** Removes a flow whose run is over. */
  public static void forget(String flow) {
    FLOWS.remove(flow);
  }

  /** Must be called where the task runs, before the lifetime is read. */
  void arrive() {
    live = find(flow, chain);
  }

  long nanos() {
    return live == null ? planned : live.nanos;
  }

  long tickNanos() {
    return tickNanos;
  }

  private static Values find(String flow, String chain) {
    ConcurrentMap<String, Values> chains = FLOWS.get(flow);
    return chains == null ? null : chains.get(chain);
  }

  private static Values values(String flow, String chain) {
    return FLOWS
        .computeIfAbsent(flow, unknown -> new ConcurrentHashMap<>())
        .computeIfAbsent(chain, unknown -> new Values());
  }

  private static final class Values {
    private volatile long nanos;
    private volatile long tickNanos = Long.MAX_VALUE;
  }
}
