package apiserver

import (
	"context"
	"sync"
	"testing"
)

var shared struct {
	sync.Mutex
	server *Server
	err    error
}

// Main runs the tests of a package whose tests use Shared, and stops the shared server after the last:
//
//	func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }
func Main(m *testing.M) int {
	defer func() {
		shared.Lock()
		defer shared.Unlock()
		if shared.server != nil {
			shared.server.stop()
		}
	}()
	return m.Run()
}

// Shared returns the one server of this test binary, started with default options by the first test that asks. Tests keep out
// of each other's way by names of their own. The package's TestMain must call Main.
func Shared(t testing.TB) *Server {
	t.Helper()
	binary := requireBinary(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		shared.server, shared.err = start(ctx, binary)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.server
}
