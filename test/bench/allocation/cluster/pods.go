package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// giveUp is longer than the scheduler works on one pod, also with 1000 nodes.
const giveUp = 10 * time.Minute

func until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pod creates a pod for the fake nodes; without a template it claims nothing.
func (b *bench) pod(ctx context.Context, name, template string) error {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{fakeLabel: "true"}},
		Spec: v1.PodSpec{
			NodeSelector: map[string]string{fakeLabel: "true"},
			Tolerations:  []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers:   []v1.Container{{Name: "c", Image: "none"}},
		},
	}
	if template != "" {
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "accel", ResourceClaimTemplateName: &template}}
		p.Spec.Containers[0].Resources.Claims = []v1.ResourceClaim{{Name: "accel"}}
	}
	_, err := b.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
	return err
}

// follow calls f with each state of each pod of this bench until it says that it
// has seen enough. The API server may end a watch any time; a new one begins with
// the pods as they are.
func (b *bench) follow(ctx context.Context, f func(*v1.Pod) (enough bool)) error {
	ctx, cancel := context.WithTimeout(ctx, giveUp)
	defer cancel()
	for ctx.Err() == nil {
		w, err := b.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: fakeLabel})
		if err != nil {
			return err
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*v1.Pod); ok && event.Type != watch.Deleted && f(pod) {
				w.Stop()
				return nil
			}
		}
	}
	return errors.New("the scheduler did not answer in time")
}

// refused tells whether the scheduler has said that a pod fits nowhere.
func refused(p *v1.Pod) bool {
	for _, c := range p.Status.Conditions {
		// The first such condition may be about the claim, which the controller has yet
		// to make.
		if c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse {
			return !strings.Contains(c.Message, "waiting for dynamic resource controller")
		}
	}
	return false
}

// refusal creates a pod that fits nowhere and a small one behind it. It returns how
// long each waited for its answer, and the scheduler's processor time for both.
func (b *bench) refusal(ctx context.Context) (big, cpu, small time.Duration, err error) {
	before, _, err := b.schedulerUse()
	if err != nil {
		return 0, 0, 0, err
	}
	start := time.Now()
	if err := b.pod(ctx, "big", "eight"); err != nil {
		return 0, 0, 0, err
	}
	// The claim must be there before the scheduler starts on the pod.
	if err := until(ctx, "the claim of the big pod", func() (bool, error) {
		p, err := b.CoreV1().Pods(namespace).Get(ctx, "big", metav1.GetOptions{})
		return err == nil && len(p.Status.ResourceClaimStatuses) > 0, err
	}); err != nil {
		return 0, 0, 0, err
	}
	behind := time.Now()
	if err := b.pod(ctx, "small", ""); err != nil {
		return 0, 0, 0, err
	}
	err = b.follow(ctx, func(p *v1.Pod) bool {
		switch {
		case p.Name == "big" && big == 0 && refused(p):
			big = time.Since(start)
		case p.Name == "small" && small == 0 && p.Spec.NodeName != "":
			small = time.Since(behind)
		}
		return big > 0 && small > 0
	})
	after, _, useErr := b.schedulerUse()
	err = errors.Join(err, useErr, b.deletePods(ctx))
	time.Sleep(time.Second) // until the claim is gone
	return big, after - before, small, err
}

// place creates pods with one pair each and returns how long it takes until all
// have a node.
func (b *bench) place(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	created := make(chan error, 1)
	go func() {
		created <- each(b.pods, func(i int) error { return b.pod(ctx, fmt.Sprintf("one-%04d", i), "one") })
	}()
	bound := map[string]bool{}
	err := b.follow(ctx, func(p *v1.Pod) bool {
		if p.Spec.NodeName != "" {
			bound[p.Name] = true
		}
		return len(bound) == b.pods
	})
	took := time.Since(start)
	if err := errors.Join(err, <-created); err != nil {
		return 0, fmt.Errorf("%d of %d pods are placed: %w", len(bound), b.pods, err)
	}
	if err := b.deletePods(ctx); err != nil {
		return 0, err
	}
	return took, until(ctx, "claims of deleted pods to go", func() (bool, error) {
		list, err := b.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

// schedulerUse returns the processor time and the resident memory of the cluster's
// scheduler, which shares this machine's /proc.
func (b *bench) schedulerUse() (cpu time.Duration, rss int64, err error) {
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, 0, err
	}
	wanted := "--kubeconfig\x00" + filepath.Join(b.dir, "scheduler.kubeconfig")
	for _, dir := range processes {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(cmdline), wanted) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			return 0, 0, err
		}
		// Fields after the name, which may contain blanks: utime and stime are fields 14
		// and 15 of proc(5) in ticks of 10 ms, rss is field 24 in pages.
		fields := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+1:])
		user, err1 := strconv.ParseInt(fields[11], 10, 64)
		system, err2 := strconv.ParseInt(fields[12], 10, 64)
		pages, err3 := strconv.ParseInt(fields[21], 10, 64)
		return time.Duration(user+system) * 10 * time.Millisecond, pages * int64(os.Getpagesize()), errors.Join(err1, err2, err3)
	}
	return 0, 0, fmt.Errorf("no kube-scheduler with %s runs on this machine", strings.ReplaceAll(wanted, "\x00", " "))
}
