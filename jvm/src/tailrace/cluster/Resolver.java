package tailrace.cluster;

import java.io.OutputStream;
import java.io.PrintStream;
import java.util.List;
import org.apache.ivy.Ivy;
import org.apache.ivy.core.module.descriptor.DependencyDescriptor;
import org.apache.ivy.core.module.descriptor.ModuleDescriptor;
import org.apache.ivy.core.module.id.ModuleRevisionId;
import org.apache.ivy.core.resolve.ResolvedModuleRevision;
import org.apache.ivy.core.settings.IvySettings;
import org.apache.ivy.core.settings.NamedTimeoutConstraint;
import org.apache.ivy.plugins.resolver.AbstractResolver;
import org.apache.ivy.plugins.resolver.DependencyResolver;
import org.apache.ivy.util.DefaultMessageLogger;
import org.apache.ivy.util.Message;
import org.apache.spark.util.MavenUtils;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds Spark's Kafka connector by Maven coordinates, in a separate process.
 *
 * <p>It uses Spark's own resolver, with the caches, repositories and Ivy settings that {@code
 * spark.jars.packages} would use. This is done in advance, because a session with an unavailable
 * package does not start. Only the jars that Spark lacks are taken, each without its dependencies:
 * Spark has the rest, perhaps in another version.
 *
 * <p>Arguments are {@code connector/token provider} pairs of versions, best first. Standard output
 * gets, line by line, {@code refused PAIR: reason} for each that is not available, then {@code
 * found PAIR} and the paths of its jars.
 */
public final class Resolver {
  private static final String SPARK = "org.apache.spark";
  private static final String CONNECTOR = "spark-sql-kafka-0-10_2.13";
  private static final String TOKENS = "spark-token-provider-kafka-0-10_2.13";
  private static final int CONNECT_MS = 5_000;
  private static final int READ_MS = 10_000;

  private final IvySettings settings;
  private final Ivy ivy;

  private Resolver() {
    Message.setDefaultLogger(new DefaultMessageLogger(Message.MSG_ERR));
    Option<String> repositories = property("spark.jars.repositories");
    Option<String> cache = property("spark.jars.ivy");
    Option<String> file = property("spark.jars.ivySettings");
    settings =
        file.isDefined()
            ? MavenUtils.loadIvySettings(file.get(), repositories, cache, quiet())
            : MavenUtils.buildIvySettings(repositories, cache, true, quiet());
    limitWaiting(settings);
    ivy = Ivy.newInstance(settings);
  }

  /** Prints the first available pair of versions, and its jars. */
  public static void main(String[] pairs) {
    Resolver resolver = new Resolver();
    for (String pair : pairs) {
      String[] versions = pair.split("/");
      try {
        List<String> jars = resolver.jars(versions[0], versions[1]);
        System.out.println("found " + pair);
        jars.forEach(System.out::println);
        return;
      } catch (RuntimeException refusal) {
        System.out.println("refused " + pair + ": " + reason(refusal));
      }
    }
  }

  private List<String> jars(String version, String tokens) {
    ModuleDescriptor pom = pom(ModuleRevisionId.newInstance(SPARK, CONNECTOR, version));
    String wanted =
        String.join(
            ",",
            SPARK + ":" + CONNECTOR + ":" + version,
            SPARK + ":" + TOKENS + ":" + tokens,
            dependency(pom, "kafka-clients"),
            dependency(pom, "commons-pool2"));
    return CollectionConverters.asJava(
        MavenUtils.resolveMavenCoordinates(
            wanted,
            settings,
            Option.empty(),
            false,
            CollectionConverters.asScala(List.<String>of()).toSeq(),
            false,
            quiet()));
  }

  private ModuleDescriptor pom(ModuleRevisionId connector) {
    ResolvedModuleRevision found = ivy.findModule(connector);
    if (found == null) {
      throw new IllegalStateException(connector + ": not found");
    }
    return found.getDescriptor();
  }

  private static String dependency(ModuleDescriptor pom, String name) {
    for (DependencyDescriptor each : pom.getDependencies()) {
      ModuleRevisionId id = each.getDependencyRevisionId();
      if (id.getName().equals(name)) {
        return id.getOrganisation() + ":" + name + ":" + id.getRevision();
      }
    }
    throw new IllegalStateException("its description names no version of " + name);
  }

  /** The first line of an error, without the brackets that Ivy puts around it. */
  private static String reason(RuntimeException refusal) {
    String said = String.valueOf(refusal.getMessage()).lines().findFirst().orElse("no reason given");
    return said.replaceFirst("^\\[unresolved dependency: (.*?)[\\],].*", "$1");
  }

  /**
   * Ivy itself would wait forever for a repository that accepts connections but does not answer.
   */
  private static void limitWaiting(IvySettings settings) {
    NamedTimeoutConstraint limit = new NamedTimeoutConstraint("tailrace");
    limit.setConnectionTimeout(CONNECT_MS);
    limit.setReadTimeout(READ_MS);
    settings.addConfigured(limit);
    for (DependencyResolver each : settings.getResolvers()) {
      if (each instanceof AbstractResolver resolver && resolver.getTimeoutConstraint() == null) {
        resolver.setTimeoutConstraint(limit.getName());
      }
    }
  }

  private static Option<String> property(String name) {
    return Option.apply(System.getProperty(name));
  }

  private static PrintStream quiet() {
    return new PrintStream(OutputStream.nullOutputStream());
  }
}
