package tailrace.pacing;

import java.time.Instant;

/** The wall clock in microseconds since the epoch. */
public final class Clock {
  private Clock() {}

  /** The time now. */
  public static long nowUs() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
  }
}
