// Package uevent hears what the kernel says about devices that come and go.
package uevent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Event is one message of the kernel (lib/kobject_uevent.c).
type Event struct {
	Action    string // add, remove, change, move, online, offline, bind, unbind
	DevPath   string // path below /sys
	Subsystem string // "pci", "net", "infiniband", "module"
}

// group is the multicast group of the kernel itself; udevd repeats events, after
// its rules, on group 2.
const group = 1

// bufferSize holds a burst of some thousand events, such as 64 VFs make.
const bufferSize = 4 << 20

// Listen calls handle for every event of this network namespace until the context
// ends. When events were lost, handle gets a zero Event: look at everything again.
// Events of network interfaces reach only the namespace that they are in.
func Listen(ctx context.Context, handle func(Event)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("open uevent socket: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group}); err != nil {
		return fmt.Errorf("join uevent group: %w", err)
	}
	// SO_RCVBUFFORCE needs CAP_NET_ADMIN; without it the system's limit holds.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferSize)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("open eventfd: %w", err)
	}
	defer unix.Close(wake)
	stop := context.AfterFunc(ctx, func() {
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer stop()
	return receive(ctx, fd, wake, handle)
}

func receive(ctx context.Context, fd, wake int, handle func(Event)) error {
	// The kernel's message has at most 2 KiB of environment (UEVENT_BUFFER_SIZE).
	buf := make([]byte, 8192)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(poll, -1)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end that was asked for
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for uevents: %w", err)
		}
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.ENOBUFS): // the kernel dropped events: we were too slow
			handle(Event{})
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("read uevent: %w", err)
		default:
			// Only the kernel has port 0; another process can send to us too.
			if sender, ok := from.(*unix.SockaddrNetlink); ok && sender.Pid == 0 {
				if e, ok := parse(buf[:n]); ok {
					handle(e)
				}
			}
		}
	}
}

// parse reads "add@/devices/..." and NUL separated KEY=value pairs.
func parse(message []byte) (Event, bool) {
	header, rest, _ := bytes.Cut(message, []byte{0})
	action, path, ok := strings.Cut(string(header), "@")
	if !ok {
		return Event{}, false
	}
	e := Event{Action: action, DevPath: path}
	for _, pair := range bytes.Split(rest, []byte{0}) {
		if value, ok := bytes.CutPrefix(pair, []byte("SUBSYSTEM=")); ok {
			e.Subsystem = string(value)
		}
	}
	return e, true
}
