// Package apiserver runs a real kube-apiserver and its etcd for a test, on loopback and without privileges.
//
// It proves what a fake client cannot: authorization, admission policies, validation and defaulting. The binary is the
// multi-call one that hack/cluster builds. No controllers run: nothing schedules, and nothing fills service accounts.
package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// startTimeout is generous: a start takes 3 s on an idle machine, and tests of all packages may start one at once.
const startTimeout = 90 * time.Second

// Server is a running API server.
type Server struct {
	// Config is that of a cluster administrator (group system:masters), without client-side rate limits.
	Config *rest.Config

	dir       string
	etcd      *process
	apiserver *process
}

// Option changes how a server is started.
type Option func(*options)

type options struct {
	featureGates []string
	args         []string
}

// WithFeatureGate switches a Kubernetes feature gate on or off.
func WithFeatureGate(name string, on bool) Option {
	return func(o *options) { o.featureGates = append(o.featureGates, fmt.Sprintf("%s=%t", name, on)) }
}

// WithArgs appends command line arguments of kube-apiserver.
func WithArgs(args ...string) Option {
	return func(o *options) { o.args = append(o.args, args...) }
}

// Start runs a server until the test ends. It skips the test when there is no binary, unless TOPODRA_REQUIRE_CLUSTER is set:
// then it fails.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	binary := requireBinary(t)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s, err := start(ctx, binary, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-apiserver said last:\n%s", s.apiserver.tail())
		}
		s.stop()
	})
	return s
}

// As returns a configuration that acts as the service account "namespace/name". nodeName is the node that its token is bound
// to, as the token of a running pod is; empty stands for a token that is bound to no pod.
func (s *Server) As(serviceAccount, nodeName string) *rest.Config {
	namespace, name, ok := strings.Cut(serviceAccount, "/")
	if !ok {
		panic(fmt.Sprintf("apiserver: service account %q is not of the form namespace/name", serviceAccount))
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	if nodeName != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {nodeName}}
	}
	return config
}

// Kubeconfig writes a kubeconfig file for Config, for programs that read one, and returns its path.
func (s *Server) Kubeconfig(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: admin, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
`, s.Config.Host, s.Config.CAFile, s.Config.BearerToken)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func start(ctx context.Context, binary string, opts ...Option) (_ *Server, err error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	// Not t.TempDir: its path carries the test's name, and etcd's directory must outlive a shared server's first test.
	dir, err := os.MkdirTemp("", "apiserver-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	token, err := writeCredentials(dir)
	if err != nil {
		return nil, err
	}
	etcdURL := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peerURL := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	s.etcd, err = startProcess(filepath.Join(dir, "etcd.log"), binary, "etcd",
		"--name=test", "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+peerURL, "--initial-advertise-peer-urls="+peerURL, "--initial-cluster=test="+peerURL)
	if err != nil {
		return nil, err
	}
	args := []string{"kube-apiserver",
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
		"--cert-dir=" + dir, "--token-auth-file=" + filepath.Join(dir, tokenFile),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-key-file=" + filepath.Join(dir, keyFile),
		"--service-account-signing-key-file=" + filepath.Join(dir, keyFile),
		"--authorization-mode=RBAC", "--allow-privileged=true",
		// Both wait for controllers that do not run here.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// The reconciler refuses a loopback address, over and over.
		"--endpoint-reconciler-type=none",
		// Requests are not queued by priority: bursts of a benchmark measure the server, not its fairness.
		"--enable-priority-and-fairness=false", "--profiling=false",
		// A test that leaves a watch open must not hold up the stop.
		"--shutdown-delay-duration=0s",
	}
	if len(o.featureGates) > 0 {
		args = append(args, "--feature-gates="+strings.Join(o.featureGates, ","))
	}
	s.apiserver, err = startProcess(filepath.Join(dir, "kube-apiserver.log"), binary, append(args, o.args...)...)
	if err != nil {
		return nil, err
	}
	s.Config = &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", ports[2]),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(dir, "apiserver.crt")},
		QPS:             -1,
	}
	return s, s.waitReady(ctx)
}

// waitReady returns when every start hook has finished; among them is the one that makes the default RBAC roles.
func (s *Server) waitReady(ctx context.Context) error {
	for {
		for _, p := range []*process{s.etcd, s.apiserver} {
			if p.exited() {
				return fmt.Errorf("%s ended while starting, its last lines:\n%s", p.name, p.tail())
			}
		}
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %s (%w), its last lines:\n%s", startTimeout, err, s.apiserver.tail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (s *Server) ready(ctx context.Context) error {
	// The server makes its own certificate; until then there is nothing to trust.
	if _, err := os.Stat(s.Config.CAFile); err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(s.Config)
	if err != nil {
		return err
	}
	return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

func (s *Server) stop() {
	for _, p := range []*process{s.apiserver, s.etcd} {
		if p != nil {
			p.kill()
		}
	}
	os.RemoveAll(s.dir)
}

// freePorts returns n loopback TCP ports that nobody listened on a moment ago.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		// Held until all are chosen, so that they differ.
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// requireBinary returns the path of the multi-call binary, or ends the test.
func requireBinary(t testing.TB) string {
	t.Helper()
	path, err := Binary("hyper", "TOPODRA_HYPER")
	switch {
	case err == nil:
		return path
	case os.Getenv("TOPODRA_REQUIRE_CLUSTER") != "":
		t.Fatalf("no kube-apiserver binary: run `hack/cluster build` (%v)", err)
	default:
		t.Skipf("no kube-apiserver binary: run `hack/cluster build` (%v)", err)
	}
	return ""
}

// Binary finds a program that hack/cluster builds: at the path in the environment variable override, else the newest one
// among the outputs in ${TOPODRA_CACHE:-${XDG_CACHE_HOME:-/var/tmp}/topodra}/build.
func Binary(name, override string) (string, error) {
	if path := os.Getenv(override); path != "" {
		if info, err := os.Stat(path); err != nil {
			return "", err
		} else if !info.Mode().IsRegular() {
			return "", errors.New(path + " is not a file")
		}
		return path, nil
	}
	cache := os.Getenv("TOPODRA_CACHE")
	if cache == "" {
		cache = filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), "/var/tmp"), "topodra")
	}
	pattern := filepath.Join(cache, "build", "*", name)
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	// A build touches the folder of the output that fits the checkout.
	modified := func(path string) time.Time {
		info, err := os.Stat(filepath.Dir(path))
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no %s", pattern)
	}
	return slices.MaxFunc(found, func(a, b string) int { return modified(a).Compare(modified(b)) }), nil
}
