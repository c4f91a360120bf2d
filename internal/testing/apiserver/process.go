package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// process is a child that dies with this test binary, whatever ends it.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed once the child has been reaped
}

func startProcess(log, binary string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: args[0], log: log, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, not the process: keep the thread until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.cmd.Wait() //nolint:errcheck // killed on purpose; exited tells about the other ends
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s %s: %w", binary, args[0], err)
	}
	return p, nil
}

func (p *process) exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill does not ask first: the state is thrown away, and an orderly stop of kube-apiserver waits for open watches.
func (p *process) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended by itself
	<-p.done
}

// tail returns the last lines of the log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
