// Command linear checks with Porcupine whether the histories of a world's registers are linearizable.
//
// It reads lines of JSON from standard input: the invocations and the results that drivers recorded
// (tests/faults/worlds/history.py). Each key is a register with a fence. Whoever fences it becomes its owner, only its
// owner can write, and a read returns what was written last. An operation without a result, or with an unknown one, may
// have taken effect at any time after its invocation, or never.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	limit   = 20 * time.Second
	longest = 1 << 20
)

type event struct {
	Client string `json:"client"`
	Number int    `json:"number"`
	Key    string `json:"key"`
	Op     string `json:"op"`
	Type   string `json:"type"`
	Value  string `json:"value"`
	Time   int64  `json:"time"`
}

type input struct {
	op, client, value string
	unknown           bool
}

type register struct{ owner, value string }

type report struct {
	Operations int      `json:"operations"`
	Objects    int      `json:"objects"`
	Broken     []string `json:"broken"`
	Undecided  []string `json:"undecided"`
}

func step(state, in, out any) (bool, any) {
	now, op := state.(register), in.(input)
	switch op.op {
	case "fence":
		return true, register{op.client, now.value}
	case "write":
		if now.owner == op.client {
			return true, register{now.owner, op.value}
		}
		return op.unknown, now
	default:
		return now.value == out.(string), now
	}
}

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: step,
}

func histories(lines *bufio.Scanner) (map[string][]porcupine.Operation, error) {
	type place struct {
		client string
		number int
	}
	invoked, results, order := map[place]event{}, map[place]event{}, []place{}
	for lines.Scan() {
		var found event
		if err := json.Unmarshal(lines.Bytes(), &found); err != nil {
			return nil, fmt.Errorf("%q: %w", lines.Text(), err)
		}
		at := place{found.Client, found.Number}
		if found.Type == "invoke" {
			invoked[at] = found
			order = append(order, at)
		} else {
			results[at] = found
		}
	}
	clients, kept := map[string]int{}, map[string][]porcupine.Operation{}
	for _, at := range order {
		call := invoked[at]
		result, returned := results[at]
		known := returned && result.Type == "ok"
		if !known && call.Op == "read" {
			continue
		}
		if _, seen := clients[call.Client]; !seen {
			clients[call.Client] = len(clients)
		}
		operation := porcupine.Operation{
			ClientId: clients[call.Client],
			Input:    input{call.Op, call.Client, call.Value, !known},
			Output:   result.Value,
			Call:     call.Time,
			Return:   math.MaxInt64,
		}
		if known {
			operation.Return = result.Time
		}
		kept[call.Key] = append(kept[call.Key], operation)
	}
	return kept, lines.Err()
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, longest), longest)
	kept, err := histories(lines)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	found := report{Objects: len(kept), Broken: []string{}, Undecided: []string{}}
	for key, operations := range kept {
		found.Operations += len(operations)
		switch porcupine.CheckOperationsTimeout(model, operations, limit) {
		case porcupine.Illegal:
			found.Broken = append(found.Broken, key)
		case porcupine.Unknown:
			found.Undecided = append(found.Undecided, key)
		}
	}
	sort.Strings(found.Broken)
	sort.Strings(found.Undecided)
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		os.Exit(2)
	}
}
