// Steers one message with nothing but Temporal's own SDK: reschedules it, then prints what it says of itself.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"math/bits"
	"os"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/converter"
	"golang.org/x/crypto/blake2b"
)

// place is where a message lives: ids is nil for a message with a workflow of its own.
type place struct {
	workflowID string
	ids        []string
}

// find gives the workflow that a message lives in. Packed kinds keep the number of their packs in the memo of "kind~".
func find(ctx context.Context, c client.Client, kind, id string) (place, error) {
	described, err := c.DescribeWorkflowExecution(ctx, kind+"~", "")
	var notFound *serviceerror.NotFound
	if errors.As(err, &notFound) {
		return place{workflowID: kind + ":" + id}, nil
	}
	if err != nil {
		return place{}, err
	}
	var layout struct {
		Packs int `json:"packs"`
	}
	memo := described.GetWorkflowExecutionInfo().GetMemo().GetFields()["layout"]
	if err := converter.GetDefaultDataConverter().FromPayload(memo, &layout); err != nil {
		return place{}, err
	}
	return place{fmt.Sprintf("%s~%d", kind, packIndex(id, layout.Packs)), []string{id}}, nil
}

// packIndex is the pack of an id by linear hashing of the first 8 bytes of BLAKE2b, as dormice does it.
func packIndex(id string, packs int) int {
	hash, err := blake2b.New(8, nil)
	if err != nil {
		panic(err) // 8 is a size that BLAKE2b has
	}
	hash.Write([]byte(id))
	var key uint64
	for _, each := range hash.Sum(nil) {
		key = key<<8 | uint64(each)
	}
	size := 1 << bits.Len(uint(packs))
	index := int(key & uint64(size-1))
	if index >= packs {
		index -= size / 2
	}
	return index
}

// reschedule sends the signal; a pack is told which of its messages are meant.
func reschedule(ctx context.Context, c client.Client, at place, due time.Time, reason string) error {
	argument := map[string]any{"due_at": due.Format(time.RFC3339), "reason": reason}
	if at.ids != nil {
		argument["ids"] = at.ids
	}
	return c.SignalWorkflow(ctx, at.workflowID, "", "reschedule", argument)
}

// status asks the message itself, which takes a worker; a pack is told which of its messages is meant.
func status(ctx context.Context, c client.Client, at place) (map[string]any, error) {
	arguments := []any{}
	if at.ids != nil {
		arguments = append(arguments, at.ids[0])
	}
	answer, err := c.QueryWorkflow(ctx, at.workflowID, "", "status", arguments...)
	if err != nil {
		return nil, err
	}
	var found map[string]any // nil: the pack does not know the message
	return found, answer.Get(&found)
}

func run(ctx context.Context, kind, id, dueAt string) error {
	due, err := time.Parse(time.RFC3339, dueAt)
	if err != nil {
		return err
	}
	c, err := client.Dial(envconfig.MustLoadDefaultClientOptions())
	if err != nil {
		return err
	}
	defer c.Close()
	at, err := find(ctx, c, kind, id)
	if err != nil {
		return err
	}
	if err := reschedule(ctx, c, at, due, "asked from Go"); err != nil {
		return err
	}
	found, err := status(ctx, c, at)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: steer KIND ID DUE_AT")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}
