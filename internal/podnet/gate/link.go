package gate

import (
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// An interface that was moved has just been set up, and its link may take seconds to be
// negotiated. An RDMA library that starts before finds its port DOWN and turns to TCP.
// The wait counts from the move, so that neither eight NICs without a link take eight
// times as long, nor a container that restarts.
const (
	linkWait  = 6 * time.Second
	linkPause = 20 * time.Millisecond
)

// awaitLinks waits until interfaces have a link, but not after the deadline. It gives up without an error: whether a
// port without a link matters is a question of preflight.
func awaitLinks(process string, names []string, deadline time.Time) {
	if len(names) == 0 {
		return
	}
	runtime.LockOSThread()
	ns, err := os.Open(filepath.Join(process, "ns/net"))
	if err != nil {
		return
	}
	defer ns.Close()
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return
	}
	defer own.Close()
	if unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET) != nil {
		return
	}
	defer func() {
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(socket)
	for ; time.Now().Before(deadline); time.Sleep(linkPause) {
		missing := false
		for _, name := range names {
			missing = missing || !hasLink(socket, name)
		}
		if !missing {
			return
		}
	}
}

// hasLink is true when it cannot be told.
func hasLink(socket int, name string) bool {
	request, err := unix.NewIfreq(name)
	if err != nil || unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request) != nil {
		return true
	}
	return request.Uint16()&unix.IFF_RUNNING != 0
}
