package uevent

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for message, want := range map[string]Event{
		"add@/devices/pci0000:10/0000:15:00.0\x00ACTION=add\x00SUBSYSTEM=pci\x00SEQNUM=7\x00": {"add", "/devices/pci0000:10/0000:15:00.0", "pci"},
		"remove@/module/nvidia\x00SUBSYSTEM=module":                                           {"remove", "/module/nvidia", "module"},
		"change@/x": {"change", "/x", ""},
	} {
		if got, ok := parse([]byte(message)); !ok || got != want {
			t.Errorf("parse(%q) = %+v, %v", message, got, ok)
		}
	}
	for _, message := range []string{"", "libudev\x00", "\x00@"} {
		if got, ok := parse([]byte(message)); ok {
			t.Errorf("parse(%q) = %+v, want none", message, got)
		}
	}
}

// A real interface made in a namespace of this test's own is announced.
func TestListen(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: making a network namespace needs root")
	}
	runtime.LockOSThread() // never unlocked: the namespace ends with the thread
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan Event, 100)
	done := make(chan error, 1)
	// Sockets belong to the namespace of the thread that opens them.
	ready := make(chan struct{})
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ns)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		close(ready)
		done <- Listen(ctx, func(e Event) { events <- e })
	}()
	<-ready
	deadline := time.After(10 * time.Second)
	for i := 0; ; i++ { // the listener may not have joined the group yet
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "ue0"}}
		if err := netlink.LinkAdd(link); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkDel(link); err != nil {
			t.Fatal(err)
		}
		select {
		case e := <-events:
			if e.Subsystem == "net" && e.DevPath == "/devices/virtual/net/ue0" {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("Listen ended with %v", err)
				}
				return
			}
		case err := <-done:
			t.Fatalf("Listen ended early: %v", err)
		case <-deadline:
			t.Fatal("no event for a new interface")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
