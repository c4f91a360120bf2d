package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/internal/simulate/simulatetest"
	"github.com/topodra/topodra/internal/template"
	"github.com/topodra/topodra/internal/testing/apiserver"
	"github.com/topodra/topodra/internal/topology"
)

func TestParseTemplate(t *testing.T) {
	parse := func(args ...string) (claimTemplate, error) {
		var a templateArgs
		c := templateCommandFor(&a)
		if err := c.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		return a.parse()
	}
	for _, test := range []struct {
		args string
		want claimTemplate
		err  string
	}{
		{args: "", want: claimTemplate{options: template.Options{Name: "pair", Driver: template.Topodra, Pairs: 1}, output: "yaml"}},
		{args: "--pairs 4 -o json", want: claimTemplate{options: template.Options{Name: "pairs-4", Driver: template.Topodra, Pairs: 4}, output: "json"}},
		{
			args: "--distance PXB --rail 0-3 --same-numa --name tp4 -n llm",
			want: claimTemplate{options: template.Options{
				Name: "tp4", Namespace: "llm", Driver: template.Topodra, Pairs: 1, Distance: topology.PXB, Rails: template.Rails{{0, 3}}, SameNUMA: true,
			}, output: "yaml"},
		},
		{
			args: "--prefer PIX,NODE --server-dry-run --context c",
			want: claimTemplate{options: template.Options{
				Name: "pair", Driver: template.Topodra, Pairs: 1, Prefer: template.Classes{topology.PIX, topology.NODE},
			}, output: "yaml", server: &cluster{context: "c"}},
		},
		{args: "--driver split", want: claimTemplate{options: template.Options{Name: "gpu-nic", Driver: template.Split, Pairs: 1, NICClass: "dra.net"}, output: "yaml"}},
		{
			args: "--driver split --pairs 2 --nic-class dranet",
			want: claimTemplate{options: template.Options{Name: "gpu-nic-2", Driver: template.Split, Pairs: 2, NICClass: "dranet"}, output: "yaml"},
		},
		{args: "--distance near", err: `--distance: distance "near" is none of PIX, PXB, PHB, NODE and SYS`},
		{args: "--distance unknown", err: `--distance: distance "unknown" is none of PIX, PXB, PHB, NODE and SYS`},
		{args: "--prefer PIX,near", err: `--prefer: distance "near" is none of PIX, PXB, PHB, NODE and SYS`},
		{args: "--rail 3-0", err: `--rail: rails "3-0": interval "3-0" ends before it begins`},
		{args: "-o xml", err: `--output "xml" is none of yaml, json`},
		{args: "--pairs 0", err: `--pairs 0: a claim is for at least one pair`},
	} {
		got, err := parse(strings.Fields(test.args)...)
		if message(err) != test.err {
			t.Errorf("%q: error %q, want %q", test.args, message(err), test.err)
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(claimTemplate{}, cluster{})); diff != "" && err == nil {
			t.Errorf("%q (-want +got):\n%s", test.args, diff)
		}
	}
	if _, _, err := execute("template", "--distance", "PIX", "--prefer", "PIX"); exitCode(err) != exitUsage {
		t.Errorf("contradicting flags: exit code %d, want %d: %v", exitCode(err), exitUsage, err)
	}
}

// written are the golden templates of internal/template, each with the command
// line that it names itself.
func written(t *testing.T) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(simulatetest.ModuleRoot(t), "internal/template/testdata/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden templates: %v", err)
	}
	line := regexp.MustCompile(`(?m)^# Written by: kubectl topodra (.*)$`)
	commands := map[string][]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		match := line.FindSubmatch(text)
		if match == nil {
			t.Fatalf("%s does not say how it is written", file)
		}
		commands[string(text)] = strings.Fields(string(match[1]))
	}
	return commands
}

// The command line in the comment of a template writes that template.
func TestTemplateRepeatsItself(t *testing.T) {
	for want, args := range written(t) {
		got, notes, err := execute(args...)
		if err != nil || notes != "" {
			t.Errorf("%v: %v %s", args, err, notes)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", args, diff)
		}
	}
}

// A real API server takes every template, and keeps none of them.
func TestServerDryRun(t *testing.T) {
	server := apiserver.Start(t)
	client, err := kubernetes.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := server.Kubeconfig(t)
	ask := func(args ...string) (stdout, stderr string, err error) {
		return execute(append(args, "--server-dry-run", "--kubeconfig", kubeconfig)...)
	}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "llm"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for want, args := range written(t) {
		got, notes, err := ask(args...)
		if err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", args, diff)
		}
		if !strings.Contains(notes, "Note: the cluster has no DeviceClass ") {
			t.Errorf("%v: the classes are missing, notes are %q", args, notes)
		}
	}
	all, err := client.ResourceV1().ResourceClaimTemplates("").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 0 {
		t.Errorf("a dry run left %v, %v", all.Items, err)
	}

	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "pair.topodra.dev"}}
	if _, err := client.ResourceV1().DeviceClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, notes, err := ask("template"); err != nil || notes != "" {
		t.Errorf("with the class: %v, notes %q", err, notes)
	}
	text, _, err := execute("template")
	if err != nil {
		t.Fatal(err)
	}
	object, err := template.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ResourceV1().ResourceClaimTemplates("default").Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, notes, err := ask("template"); err != nil || !strings.Contains(notes, "namespace default has a ResourceClaimTemplate pair already") {
		t.Errorf("of a name that is taken: %v, notes %q", err, notes)
	}
	if out, _, err := ask("template", "-n", "nowhere"); out != "" || !strings.Contains(message(err), `the cluster refuses this template: namespaces "nowhere" not found`) {
		t.Errorf("in a namespace that is not there: %v, %q", err, out)
	}
	if _, _, err := execute("template", "--server-dry-run", "--kubeconfig", filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("without a kubeconfig nobody was asked, and nobody says so")
	}
}
