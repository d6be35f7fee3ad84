import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Create a topic, write three records, and print them as a member of a group: {@code java Clients.java BROKER TOPIC}. */
class Clients {
    public static void main(String[] args) throws Exception {
        String broker = args[0], topic = args[1];
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", broker))) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        }
        Map<String, Object> writing = Map.of("bootstrap.servers", broker, "enable.idempotence", true);
        try (var producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 3; number++) {
                producer.send(new ProducerRecord<>(topic, "k" + number, "v" + number)).get();
            }
        }
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", broker, "group.id", topic, "auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int seen = 0; seen < 3; ) {
                for (var record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(record.key() + "=" + record.value());
                    seen++;
                }
            }
            consumer.commitSync();
        }
    }
}
