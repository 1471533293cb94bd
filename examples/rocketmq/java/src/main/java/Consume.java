import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Consume TOPIC [GROUP] prints messages as they come, until Ctrl-C. */
public final class Consume {
  private static ConsumeResult consume(MessageView message) {
    // FAILURE: it comes again later, and is a dead letter when it fails too often.
    System.out.println(
        "received " + message.getMessageId()
            + " tag " + message.getTag().orElse("")
            + ": " + StandardCharsets.UTF_8.decode(message.getBody()));
    return ConsumeResult.SUCCESS;
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length < 1) {
      throw new IllegalArgumentException("usage: Consume TOPIC [GROUP]");
    }
    try (PushConsumer consumer =
        ClientServiceProvider.loadService()
            .newPushConsumerBuilder()
            .setClientConfiguration(Broker.configuration())
            .setConsumerGroup(arguments.length > 1 ? arguments[1] : "example")
            .setSubscriptionExpressions(Map.of(arguments[0], FilterExpression.SUB_ALL))
            .setMessageListener(Consume::consume)
            .build()) {
      new CountDownLatch(1).await();
    }
  }
}
