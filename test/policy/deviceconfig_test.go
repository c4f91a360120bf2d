package policy

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/topodra/topodra/api/v1alpha1"
	"github.com/topodra/topodra/internal/testing/apiserver"
	"github.com/topodra/topodra/internal/testing/deviceconfigs"
)

const deviceConfigs = "deviceconfigs.topodra.dev"

var dryRun = []string{metav1.DryRunAll}

// configCluster is a cluster with the policy on device configurations alone. What the policy cannot evaluate it refuses here,
// so that no error hides as an acceptance. before runs when the policy is not there yet.
func configCluster(t *testing.T, before func(*cluster), args ...string) *cluster {
	t.Helper()
	server := apiserver.Start(t, apiserver.WithArgs(args...))
	c := &cluster{server: server, admin: kubernetes.NewForConfigOrDie(server.Config)}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workloads}}
	if _, err := c.admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(c)
	}
	objects := slices.DeleteFunc(render(t), func(o *unstructured.Unstructured) bool { return o.GetName() != deviceConfigs })
	if len(objects) != 2 {
		t.Fatalf("the chart has %d objects with the name %s, want a policy and its binding", len(objects), deviceConfigs)
	}
	for _, object := range objects {
		if object.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		if err := unstructured.SetNestedField(object.Object, "Fail", "spec", "failurePolicy"); err != nil {
			t.Fatal(err)
		}
	}
	c.apply(t, objects)
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		last = c.tryConfig(t, kinds[0], driver, `{}`)
		return last != nil, nil
	})
	if err != nil {
		t.Fatalf("the policy does not deny: %v", last)
	}
	return c
}

// kind is a kind of object with device configurations.
type kind struct {
	resource, path string
	create         func(ctx context.Context, c *cluster, devices resourceapi.DeviceClaim, options metav1.CreateOptions) error
}

var kinds = []kind{
	{"resourceclaims", "spec.devices", func(ctx context.Context, c *cluster, devices resourceapi.DeviceClaim, options metav1.CreateOptions) error {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, Spec: resourceapi.ResourceClaimSpec{Devices: devices}}
		_, err := c.admin.ResourceV1().ResourceClaims(workloads).Create(ctx, claim, options)
		return err
	}},
	{"resourceclaimtemplates", "spec.spec.devices", func(ctx context.Context, c *cluster, devices resourceapi.DeviceClaim, options metav1.CreateOptions) error {
		template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}
		template.Spec.Spec.Devices = devices
		_, err := c.admin.ResourceV1().ResourceClaimTemplates(workloads).Create(ctx, template, options)
		return err
	}},
	{"deviceclasses", "spec", func(ctx context.Context, c *cluster, devices resourceapi.DeviceClaim, options metav1.CreateOptions) error {
		class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}}
		for _, config := range devices.Config {
			class.Spec.Config = append(class.Spec.Config, resourceapi.DeviceClassConfiguration{DeviceConfiguration: config.DeviceConfiguration})
		}
		_, err := c.admin.ResourceV1().DeviceClasses().Create(ctx, class, options)
		return err
	}},
}

// devices asks for a device with one configuration per pair of driver and parameters.
func devices(pairs ...string) (d resourceapi.DeviceClaim) {
	d.Requests = []resourceapi.DeviceRequest{{Name: "a", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "example.com"}}}
	for pair := range slices.Chunk(pairs, 2) {
		d.Config = append(d.Config, resourceapi.DeviceClaimConfiguration{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: pair[0], Parameters: runtime.RawExtension{Raw: []byte(pair[1])}},
		}})
	}
	return d
}

// tryConfig asks whether an object with these configurations could be created.
func (c *cluster) tryConfig(t *testing.T, k kind, pairs ...string) error {
	t.Helper()
	return k.create(t.Context(), c, devices(pairs...), metav1.CreateOptions{DryRun: dryRun})
}

// said returns the sentences of a denial by the policy, each without the path to the parameters.
func said(t *testing.T, err error, path string) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	prefix := fmt.Sprintf("ValidatingAdmissionPolicy '%[1]s' with binding '%[1]s' denied request: %[2]s", deviceConfigs, path)
	_, text, ok := strings.Cut(err.Error(), prefix)
	if !ok || !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want a denial that begins with %s", err, prefix)
	}
	return strings.Split(text, "; "+path)
}

// TestDeviceConfigs: what the agent refuses before it prepares a claim is refused here too, in the same words, and nothing else.
// The oldest Kubernetes that the chart allows has fewer functions in CEL.
func TestDeviceConfigs(t *testing.T) {
	for _, version := range []string{"1.34", "1.37"} {
		t.Run(version, func(t *testing.T) {
			c := configCluster(t, nil, "--emulated-version=kube="+version)
			for _, test := range deviceconfigs.Read(t, "../..") {
				for _, k := range kinds {
					t.Run(test.Name+" in "+k.resource, func(t *testing.T) {
						path := k.path + ".config[0].opaque.parameters"
						err := c.tryConfig(t, k, driver, string(test.Parameters()))
						got, want := said(t, err, path), slices.Clone(test.PolicyFaults())
						slices.Sort(got)
						slices.Sort(want)
						if diff := cmp.Diff(want, got, cmpEmpty); diff != "" {
							t.Errorf("%s (-want +got):\n%s", test.Parameters(), diff)
						}
						_, fault := v1alpha1.DecodeDeviceConfig(runtime.RawExtension{Raw: test.Parameters()}, path)
						if fault == nil && err != nil {
							t.Errorf("the agent accepts what the policy refuses: %v", err)
						}
					})
				}
			}
		})
	}
}

// cmpEmpty lets an empty list equal none.
var cmpEmpty = cmp.Transformer("empty", func(list []string) string { return strings.Join(list, "\n") })

// TestDeviceConfigExample: the example in examples/claims can be applied where the chart is installed.
func TestDeviceConfigExample(t *testing.T) {
	text, err := os.ReadFile("../../examples/claims/nic-config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, string(text))
	for _, object := range objects {
		object.SetNamespace(workloads)
	}
	if len(objects) != 2 {
		t.Errorf("the example has %d objects, want a template and a pod", len(objects))
	}
	sharedCluster(t).apply(t, objects, dryRun...)
}

// TestDeviceConfigsOfOthers: only our own parameters are looked at, and each fault has the index of its configuration.
func TestDeviceConfigsOfOthers(t *testing.T) {
	c := configCluster(t, nil)
	const ours = `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","interface":"lo"}`
	const right = `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig"}`
	for _, k := range kinds {
		t.Run(k.resource, func(t *testing.T) {
			for name, test := range map[string]struct {
				pairs []string
				want  []string
			}{
				"no configuration": {nil, nil},
				"another driver":   {[]string{otherDriver, ours}, nil},
				"other fields":     {[]string{otherDriver, `{"mtu":"x","deep":[[{"a":null}]]}`}, nil},
				"beside ours":      {[]string{otherDriver, ours, driver, right}, nil},
				"ours is second":   {[]string{otherDriver, ours, driver, ours}, []string{`config[1].opaque.parameters.interface: "lo" is taken in every pod: choose another name`}},
				"two of ours": {[]string{driver, ours, otherDriver, ours, driver, `{}`}, []string{
					`config[0].opaque.parameters.interface: "lo" is taken in every pod: choose another name`,
					`config[2].opaque.parameters.apiVersion: "" is not known, want "topodra.dev/v1alpha1"`,
				}},
			} {
				t.Run(name, func(t *testing.T) {
					got := said(t, c.tryConfig(t, k, test.pairs...), k.path+".")
					slices.Sort(got)
					if diff := cmp.Diff(test.want, got); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			}
		})
	}
}

// TestDeviceConfigsThatAreNoObject: the API server has its own words.
func TestDeviceConfigsThatAreNoObject(t *testing.T) {
	c := configCluster(t, nil)
	for _, parameters := range []string{`null`, `7`, `"text"`, `[]`, `true`} {
		err := c.tryConfig(t, kinds[0], driver, parameters)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.devices.config[0].opaque.parameters: ") {
			t.Errorf("%s: got %v, want it refused with its path", parameters, err)
		}
	}
}

// TestDeviceConfigsLarge: a claim that is larger than anyone writes is evaluated; a message that the API server would drop,
// since it is too long or has two lines, is made to fit.
func TestDeviceConfigsLarge(t *testing.T) {
	c := configCluster(t, nil)
	list := func(n int, format string) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(format, i))
		}
		return strings.Join(items, ",")
	}
	nic := func(fields string) string {
		return `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig",` + fields + `}`
	}
	var pairs []string
	for range 32 {
		pairs = append(pairs, driver, nic(`"addresses":[`+list(8, `"10.1.%d.5/24"`)+`],"routes":[`+list(8, `{"to":"10.2.%d.0/24","via":"10.1.0.1"}`)+`]`))
	}
	if err := c.tryConfig(t, kinds[0], pairs...); err != nil {
		t.Errorf("32 configurations with 8 addresses and 8 routes each: %v", err)
	}
	err := c.tryConfig(t, kinds[0], driver, nic(`"addresses":[`+list(100, `"ä%d"`)+`]`))
	got := said(t, err, "spec.devices.config[0].opaque.parameters.")
	if len(got) < 5 || !strings.HasSuffix(err.Error(), " ...") {
		t.Errorf("100 faults: %d sentences in %v", len(got), err)
	}
	err = c.tryConfig(t, kinds[0], driver, nic(`"a\nb":1`))
	if diff := cmp.Diff([]string{"a b: unknown field"}, said(t, err, "spec.devices.config[0].opaque.parameters.")); diff != "" {
		t.Errorf("a line break (-want +got):\n%s", diff)
	}
	// As much as parameters can have: the chart's own policy lets pass what costs too much to evaluate, and the agent looks again.
	huge := nic(`"addresses":[` + list(200, `"10.1.%d.5/24"`) + `],"routes":[` + list(140, `{"to":"10.2.%d.0/24","via":"10.1.0.1"}`) + `]`)
	if err := sharedCluster(t).tryConfig(t, kinds[0], driver, huge); err != nil {
		t.Errorf("%d bytes: %v", len(huge), err)
	}
}

// TestDeviceConfigsFromBefore: an object whose mistake was stored before the policy can be changed in all else, and deleted.
func TestDeviceConfigsFromBefore(t *testing.T) {
	const wrong = `{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdmma":"shared"}`
	c := configCluster(t, func(c *cluster) {
		for _, object := range []interface {
			metav1.Object
			runtime.Object
		}{
			&resourceapi.ResourceClaim{Spec: resourceapi.ResourceClaimSpec{Devices: devices(driver, wrong)}},
			&resourceapi.ResourceClaimTemplate{Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: devices(driver, wrong)}}},
			&resourceapi.DeviceClass{Spec: resourceapi.DeviceClassSpec{Config: []resourceapi.DeviceClassConfiguration{{DeviceConfiguration: devices(driver, wrong).Config[0].DeviceConfiguration}}}},
		} {
			object.SetName("old")
			object.SetFinalizers([]string{"example.com/keep"})
			var err error
			switch object := object.(type) {
			case *resourceapi.ResourceClaim:
				_, err = c.admin.ResourceV1().ResourceClaims(workloads).Create(t.Context(), object, metav1.CreateOptions{})
			case *resourceapi.ResourceClaimTemplate:
				_, err = c.admin.ResourceV1().ResourceClaimTemplates(workloads).Create(t.Context(), object, metav1.CreateOptions{})
			case *resourceapi.DeviceClass:
				_, err = c.admin.ResourceV1().DeviceClasses().Create(t.Context(), object, metav1.CreateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	claims, templates, classes := c.admin.ResourceV1().ResourceClaims(workloads), c.admin.ResourceV1().ResourceClaimTemplates(workloads), c.admin.ResourceV1().DeviceClasses()
	patchClaim := func(patch string, subresource ...string) error {
		_, err := claims.Patch(t.Context(), "old", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
		return err
	}
	patchTemplate := func(patch string) error {
		_, err := templates.Patch(t.Context(), "old", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	patchClass := func(patch string) error {
		_, err := classes.Patch(t.Context(), "old", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	const labels, finalizers = `{"metadata":{"labels":{"a":"b"}}}`, `{"metadata":{"finalizers":null}}`
	const selectors = `{"spec":{"selectors":[{"cel":{"expression":"true"}}]}}`
	classConfig := func(parameters string) string {
		return fmt.Sprintf(`{"spec":{"config":[{"opaque":{"driver":%q,"parameters":%s}}]}}`, driver, parameters)
	}
	const path = "spec.config[0].opaque.parameters."
	if got := said(t, patchClass(classConfig(`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"host"}`)), path); len(got) != 1 {
		t.Errorf("a new mistake in a class: got %q", got)
	}
	const status = `{"status":{"allocation":{"devices":{}},"reservedFor":[{"resource":"pods","name":"p","uid":"u"}]}}`
	steps := []struct {
		name string
		err  error
	}{
		{"claim's labels", patchClaim(labels)},
		{"claim's status", patchClaim(status, "status")},
		{"claim's status back", patchClaim(`{"status":{"allocation":null,"reservedFor":null}}`, "status")},
		{"template's labels", patchTemplate(labels)},
		{"class's labels", patchClass(labels)},
		{"class's selectors", patchClass(selectors)},
		{"claim deleted", claims.Delete(t.Context(), "old", metav1.DeleteOptions{})},
		{"template deleted", templates.Delete(t.Context(), "old", metav1.DeleteOptions{})},
		{"class repaired", patchClass(classConfig(`{"apiVersion":"topodra.dev/v1alpha1","kind":"NICConfig","rdma":"shared"}`))},
		{"class deleted", classes.Delete(t.Context(), "old", metav1.DeleteOptions{})},
		{"claim's finalizers", patchClaim(finalizers)},
		{"template's finalizers", patchTemplate(finalizers)},
		{"class's finalizers", patchClass(finalizers)},
	}
	for _, step := range steps {
		if step.err != nil {
			t.Errorf("%s: %v", step.name, step.err)
		}
	}
}

// TestDeviceConfigsInEveryVersion: the policy sees objects as the user wrote them.
func TestDeviceConfigsInEveryVersion(t *testing.T) {
	versions := []string{"v1beta1", "v1beta2", "v1"}
	c := configCluster(t, nil, "--runtime-config=resource.k8s.io/v1beta1=true,resource.k8s.io/v1beta2=true")
	client := dynamic.NewForConfigOrDie(c.server.Config)
	config := []any{map[string]any{"opaque": map[string]any{"driver": driver, "parameters": map[string]any{
		"apiVersion": "topodra.dev/v1alpha1", "kind": "NICConfig", "mtu": int64(5),
	}}}}
	for _, version := range versions {
		request := map[string]any{"name": "a", "exactly": map[string]any{"deviceClassName": "example.com"}}
		if version == "v1beta1" {
			request = map[string]any{"name": "a", "deviceClassName": "example.com"}
		}
		claim := map[string]any{"devices": map[string]any{"requests": []any{request}, "config": config}}
		for resource, object := range map[string]map[string]any{
			"resourceclaims":         {"kind": "ResourceClaim", "spec": claim},
			"resourceclaimtemplates": {"kind": "ResourceClaimTemplate", "spec": map[string]any{"spec": claim}},
			"deviceclasses":          {"kind": "DeviceClass", "spec": map[string]any{"config": config}},
		} {
			object["apiVersion"] = "resource.k8s.io/" + version
			object["metadata"] = map[string]any{"name": "a"}
			var target dynamic.ResourceInterface = client.Resource(schema.GroupVersionResource{Group: "resource.k8s.io", Version: version, Resource: resource})
			if resource != "deviceclasses" {
				target = client.Resource(schema.GroupVersionResource{Group: "resource.k8s.io", Version: version, Resource: resource}).Namespace(workloads)
			}
			_, err := target.Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{DryRun: dryRun})
			k := kinds[slices.IndexFunc(kinds, func(k kind) bool { return k.resource == resource })]
			got := said(t, err, k.path+".config[0].opaque.parameters.")
			if diff := cmp.Diff([]string{"mtu: 5 bytes cannot be sent, want 68 to 65535"}, got); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", version, resource, diff)
			}
		}
	}
}

// TestDeviceConfigPolicyNeverLocksOut: the agent checks again, so the policy lets through what it cannot evaluate; and it goes
// with the switch.
func TestDeviceConfigPolicyNeverLocksOut(t *testing.T) {
	for _, object := range render(t) {
		if object.GetKind() == "ValidatingAdmissionPolicy" && object.GetName() == deviceConfigs {
			if got, _, err := unstructured.NestedString(object.Object, "spec", "failurePolicy"); got != "Ignore" || err != nil {
				t.Errorf("failurePolicy %q (%v), want Ignore", got, err)
			}
		}
	}
	for _, object := range render(t, "--set", "admissionPolicies.enabled=false") {
		if object.GetName() == deviceConfigs {
			t.Errorf("%s is there though admissionPolicies.enabled is false", object.GetKind())
		}
	}
}
