// Package kafka stands in for the runner of kafka-message-scheduler, so that its own tests run against dormice: a
// runner that starts is a bridge and a worker, and one that closes ends both.
package kafka

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/etf1/kafka-message-scheduler/config"
	"github.com/etf1/kafka-message-scheduler/instrument"
)

// Config is what the bridge has options for. The YAML file, of librdkafka's own names, has no counterpart.
type Config struct {
	GroupID, HistoryTopic string
	Topics                []string
	Grace                 int
}

// Runner is a bridge and a worker, once it has started.
type Runner struct {
	config    Config
	processes chan []*exec.Cmd
	closing   chan bool
}

// DefaultConfig reads the environment as the scheduler does.
func DefaultConfig() Config {
	return Config{config.GroupID(), config.HistoryTopic(), config.SchedulesTopics(), config.ScheduleGraceInterval()}
}

// DefaultSince is not used: the bridge takes what the topic holds.
func DefaultSince() time.Time { return time.Time{} }

// NewRunner makes a runner that has not started.
func NewRunner(c Config, _ time.Time, _ instrument.Collector) *Runner {
	return &Runner{c, make(chan []*exec.Cmd, 1), make(chan bool, 1)}
}

// Start runs a bridge and a worker until Close is called, or one of them ends by itself.
func (r *Runner) Start() error {
	bridge := append([]string{"bridge"}, r.config.Topics...)
	bridge = append(bridge, "--format", "scheduler-headers", "--kind", os.Getenv("RUNNER_KIND"),
		"--group", r.config.GroupID, "--history-topic", r.config.HistoryTopic,
		"--grace", fmt.Sprintf("%ds", r.config.Grace), "--session-seconds", "6")
	worker := []string{"worker", "--lane", "short", "--processes", "1", "--drain-seconds", "3"}
	var processes []*exec.Cmd
	ended := make(chan error, 2)
	for _, arguments := range [][]string{bridge, worker} {
		command := strings.Fields(os.Getenv("RUNNER_COMMAND"))
		process := exec.Command(command[0], append(command[1:], arguments...)...)
		process.Stdout, process.Stderr = os.Stdout, os.Stderr
		if err := process.Start(); err != nil {
			return err
		}
		processes = append(processes, process)
		go func() { ended <- process.Wait() }()
	}
	r.processes <- processes
	err := <-ended
	for _, process := range processes {
		process.Process.Signal(syscall.SIGTERM)
	}
	<-ended
	r.closing <- true
	return err
}

// Close ends both, with what they have under way.
func (r *Runner) Close() error {
	for _, process := range <-r.processes {
		process.Process.Signal(syscall.SIGTERM)
	}
	<-r.closing
	return nil
}
