package policy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPods(t *testing.T) {
	c := sharedCluster(t)
	const (
		labelDenial      = "may not change the pod label "
		annotationDenial = "may not change the pod annotation "
		specDenial       = "may not change the spec of a pod."
		ownersDenial     = "may not change the owners or finalizers of a pod."
	)
	labels := func(s string) string { return `{"metadata":{"labels":{` + s + `}}}` }
	annotations := func(s string) string { return `{"metadata":{"annotations":{` + s + `}}}` }
	own := labels(`"topodra.dev/rails":"0"`)
	tests := map[string]struct {
		tokenNode, podNode string
		patch              string
		denial             string
	}{
		"hostname label":        {ownNode, ownNode, labels(`"kubernetes.io/hostname":"n1"`), ""},
		"rack label":            {ownNode, ownNode, labels(`"topology.kubernetes.io/rack":"r"`), ""},
		"zone and region label": {ownNode, ownNode, labels(`"topology.kubernetes.io/zone":"z","topology.kubernetes.io/region":"r"`), ""},
		"own label":             {ownNode, ownNode, own, ""},
		"own label overwritten": {ownNode, ownNode, labels(`"topodra.dev/old":"b"`), ""},
		"own label removed":     {ownNode, ownNode, labels(`"topodra.dev/old":null`), ""},
		"own annotation":        {ownNode, ownNode, annotations(`"topodra.dev/placement":"{}"`), ""},
		"labels and annotation": {ownNode, ownNode, `{"metadata":{"labels":{"kubernetes.io/hostname":"n1"},"annotations":{"topodra.dev/placement":"{}"}}}`, ""},

		"pod of another node": {ownNode, otherNode, own, "agent of node n1 may not change pods of node n2."},
		"pod of no node":      {ownNode, "", own, "agent of node n1 may not change pods of no node."},
		"unbound token":       {"", ownNode, own, unbound},
		"unbound, no node":    {"", "", own, unbound},

		"foreign label added":      {ownNode, ownNode, labels(`"team":"x"`), labelDenial + "team:"},
		"foreign label changed":    {ownNode, ownNode, labels(`"app":"x"`), labelDenial + "app:"},
		"foreign label removed":    {ownNode, ownNode, labels(`"app":null`), labelDenial + "app:"},
		"foreign label among own":  {ownNode, ownNode, labels(`"topodra.dev/rails":"0","app":"x"`), labelDenial + "app:"},
		"label that looks like us": {ownNode, ownNode, labels(`"topodra.dev.example.com/rails":"0"`), labelDenial},
		"label of a subdomain":     {ownNode, ownNode, labels(`"x.topodra.dev/rails":"0"`), labelDenial},
		"other topology label":     {ownNode, ownNode, labels(`"topology.kubernetes.io/block":"0"`), labelDenial},
		"all labels removed":       {ownNode, ownNode, `{"metadata":{"labels":null}}`, labelDenial + "app:"},

		"foreign annotation added":    {ownNode, ownNode, annotations(`"team":"x"`), annotationDenial + "team:"},
		"foreign annotation changed":  {ownNode, ownNode, annotations(`"note":"x"`), annotationDenial + "note:"},
		"foreign annotation removed":  {ownNode, ownNode, annotations(`"note":null`), annotationDenial + "note:"},
		"managed label as annotation": {ownNode, ownNode, annotations(`"kubernetes.io/hostname":"n1"`), annotationDenial},

		"image":           {ownNode, ownNode, `{"spec":{"containers":[{"name":"main","image":"evil"}]}}`, specDenial},
		"deadline":        {ownNode, ownNode, `{"spec":{"activeDeadlineSeconds":1}}`, specDenial},
		"finalizer":       {ownNode, ownNode, `{"metadata":{"finalizers":["example.com/f"]}}`, ownersDenial},
		"owner reference": {ownNode, ownNode, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n1","uid":"u"}]}}`, ownersDenial},
	}
	number := 0
	for name, tc := range tests {
		number++
		object := fmt.Sprintf("pod-%d", number)
		t.Run(name, func(t *testing.T) {
			c.pod(t, object, tc.podNode, func(p *corev1.Pod) {
				p.Labels = map[string]string{"app": "a", "topodra.dev/old": "a"}
				p.Annotations = map[string]string{"note": "a"}
			})
			_, err := c.as(tc.tokenNode).CoreV1().Pods(workloads).
				Patch(t.Context(), object, types.StrategicMergePatchType, []byte(tc.patch), metav1.PatchOptions{})
			check(t, err, tc.denial)
		})
	}
	t.Run("first label and annotation of a pod", func(t *testing.T) {
		c.pod(t, "bare", ownNode, nil)
		_, err := c.as(ownNode).CoreV1().Pods(workloads).Patch(t.Context(), "bare", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"kubernetes.io/hostname":"n1"},"annotations":{"topodra.dev/placement":"{}"}}}`), metav1.PatchOptions{})
		check(t, err, "")
	})
	t.Run("somebody else is not concerned", func(t *testing.T) {
		c.pod(t, "of-admin", otherNode, nil)
		if _, err := c.admin.CoreV1().Pods(workloads).Patch(t.Context(), "of-admin", types.MergePatchType, []byte(labels(`"team":"x"`)), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	})
}
