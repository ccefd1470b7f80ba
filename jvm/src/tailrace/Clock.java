package tailrace;

import java.time.Instant;

/** The wall clock in microseconds since the epoch. */
final class Clock {
  private Clock() {}

  static long nowUs() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
  }
}
