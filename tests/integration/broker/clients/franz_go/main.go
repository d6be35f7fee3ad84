// Create a topic, write three records, and print them as a member of a group: go run . BROKER TOPIC
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kadm"
)

func main() {
	broker, topic := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(broker), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
	)
	check(err)
	defer client.Close()
	_, err = kadm.NewClient(client).CreateTopic(ctx, 1, 1, nil, topic)
	check(err)
	for number := range 3 {
		record := &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "k%d", number), Value: fmt.Appendf(nil, "v%d", number)}
		check(client.ProduceSync(ctx, record).FirstErr())
	}
	for seen := 0; seen < 3; {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Printf("%s=%s\n", record.Key, record.Value)
			seen++
		})
	}
	check(client.CommitUncommittedOffsets(ctx))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
