package apiserver_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/topodra/topodra/internal/testing/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Main(m)) }

func TestSharedServerAnswersTheAdministrator(t *testing.T) {
	s := apiserver.Shared(t)
	if again := apiserver.Shared(t); again != s {
		t.Error("a second call started a second server")
	}
	client := kubernetes.NewForConfigOrDie(s.Config)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "made-by-admin"}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Get(t.Context(), "made-by-admin", metav1.GetOptions{}); err != nil {
		t.Errorf("through the kubeconfig file: %v", err)
	}
}

func TestAs(t *testing.T) {
	s := apiserver.Shared(t)
	const nodeKey = "authentication.kubernetes.io/node-name"
	for _, node := range []string{"", "n1"} {
		client := kubernetes.NewForConfigOrDie(s.As("drivers/agent", node))
		review, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		user := review.Status.UserInfo
		if want := "system:serviceaccount:drivers:agent"; user.Username != want {
			t.Errorf("node %q: user is %s, want %s", node, user.Username, want)
		}
		if got := strings.Join(user.Extra[nodeKey], ","); got != node {
			t.Errorf("node %q: extra %s is %q", node, nodeKey, got)
		}
		// It has no role: being the administrator's impersonation must not leak the administrator's rights.
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("node %q: list nodes: got %v, want Forbidden", node, err)
		}
	}
}

func TestStartStops(t *testing.T) {
	var host string
	var dir string
	t.Run("running", func(t *testing.T) {
		s := apiserver.Start(t, apiserver.WithFeatureGate("DRADeviceBindingConditions", false), apiserver.WithArgs("--event-ttl=5m"))
		host, dir = s.Config.Host, filepath.Dir(s.Config.CAFile)
		if _, err := kubernetes.NewForConfigOrDie(s.Config).Discovery().ServerVersion(); err != nil {
			t.Fatal(err)
		}
	})
	if host == "" {
		t.Skip("the server was not started")
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(host, "https://")); err == nil {
		conn.Close()
		t.Errorf("%s still listens", host)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory %s is left: %v", dir, err)
	}
}

func TestBinary(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("TOPODRA_CACHE", cache)
	t.Setenv("TEST_BINARY", "")
	if got, err := apiserver.Binary("hyper", "TEST_BINARY"); err == nil {
		t.Errorf("an empty cache gave %s", got)
	}
	var paths []string
	for i, folder := range []string{"kubernetes-old", "kubernetes-new", "kubernetes-older"} {
		path := filepath.Join(cache, "build", folder, "hyper")
		paths = append(paths, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		when := time.Unix([]int64{2000, 3000, 1000}[i], 0)
		if err := os.Chtimes(filepath.Dir(path), when, when); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := apiserver.Binary("hyper", "TEST_BINARY"); err != nil || got != paths[1] {
		t.Errorf("cache: got %s, %v, want %s", got, err, paths[1])
	}
	t.Setenv("TEST_BINARY", paths[0])
	if got, err := apiserver.Binary("hyper", "TEST_BINARY"); err != nil || got != paths[0] {
		t.Errorf("override: got %s, %v, want %s", got, err, paths[0])
	}
	t.Setenv("TEST_BINARY", cache)
	if got, err := apiserver.Binary("hyper", "TEST_BINARY"); err == nil {
		t.Errorf("a directory gave %s", got)
	}
}
