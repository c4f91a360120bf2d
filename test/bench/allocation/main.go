// Command allocation measures how long the scheduler's own allocator takes to
// answer claims for pairs on one node: pair devices beside GPUs and NICs that are
// tied by constraints. It prints the table of docs/performance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/topodra/topodra/internal/simulate"
)

// options are the flags.
type options struct {
	machines string        // directory of machine files
	slugs    []string      // machines to measure
	limit    time.Duration // of one allocation
	spend    time.Duration // on one cell of the table
}

func main() {
	var o options
	var slugs string
	flag.StringVar(&o.machines, "machines", "testdata/machines", "directory of machine files")
	flag.StringVar(&slugs, "on", "kvm-8xh200-pxb-switch,aws-p5-48xl", "machines to measure")
	flag.DurationVar(&o.limit, "limit", 20*time.Second, "give up on one allocation after this time")
	flag.DurationVar(&o.spend, "spend", time.Second, "repeat each measurement for about this time")
	flag.Parse()
	o.slugs = strings.Split(slugs, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	fmt.Println(host())
	for _, slug := range o.slugs {
		m, err := simulate.Load(filepath.Join(o.machines, slug, "machine.yaml"))
		if err != nil {
			return err
		}
		for _, nics := range []int{0, 1} {
			b, err := newBench(ctx, m, nics, o)
			if err != nil {
				return err
			}
			if nics == 1 && len(b.gpus[0].Pair) == 1 {
				continue // the same as before
			}
			if err := b.table(ctx, slug); err != nil {
				return err
			}
		}
	}
	return nil
}

// table prints a row for each number of pairs and state.
func (b *bench) table(ctx context.Context, slug string) error {
	fmt.Printf("\n%s: %s\n\n%s", slug, b.describe(), header)
	for _, n := range []int{1, 2, 4, 8} {
		for _, state := range states {
			if row, ok := b.row(ctx, n, state); ok {
				fmt.Println(row)
			}
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
		}
	}
	return nil
}
