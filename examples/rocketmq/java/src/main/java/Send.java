import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Send TOPIC TEXT... sends each text as a message. */
public final class Send {
  public static void main(String[] arguments) throws Exception {
    if (arguments.length < 2) {
      throw new IllegalArgumentException("usage: Send TOPIC TEXT...");
    }
    String topic = arguments[0];
    ClientServiceProvider provider = ClientServiceProvider.loadService();
    try (Producer producer =
        provider
            .newProducerBuilder()
            .setClientConfiguration(Broker.configuration())
            .setTopics(topic)
            .build()) {
      for (String text : Arrays.copyOfRange(arguments, 1, arguments.length)) {
        Message message =
            provider
                .newMessageBuilder()
                .setTopic(topic)
                .setTag("example")
                .setBody(text.getBytes(StandardCharsets.UTF_8))
                .build();
        System.out.println("sent " + producer.send(message).getMessageId());
      }
    }
  }
}
