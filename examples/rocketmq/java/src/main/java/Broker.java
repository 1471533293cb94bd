import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;

/** Where the broker is, by the environment. */
final class Broker {
  private Broker() {}

  static ClientConfiguration configuration() {
    // Without enableSsl(false): TLS, and any certificate will do.
    ClientConfigurationBuilder builder =
        ClientConfiguration.newBuilder()
            .setEndpoints(System.getenv().getOrDefault("MQ_SERVER", "127.0.0.1:8081"))
            .enableSsl(false);
    String accessKey = System.getenv("MQ_ACCESS_KEY");
    if (accessKey != null) {
      builder.setCredentialProvider(
          new StaticSessionCredentialsProvider(accessKey, System.getenv("MQ_SECRET_KEY")));
    }
    return builder.build();
  }
}
