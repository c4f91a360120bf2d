package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"github.com/google/go-cmp/cmp"
)

// grant is one verb on one resource of an API group: "resource.k8s.io resourceslices get".
func grant(group, resource, verb string) string {
	return strings.TrimSpace(group + " " + resource + " " + verb)
}

// TestEveryVerbOfTheRoleIsNeeded makes the agent's requests with its role, and each once more with a role that lacks the one
// verb: that must be denied. A verb of the role that no request is written for fails the test.
func TestEveryVerbOfTheRoleIsNeeded(t *testing.T) {
	c := sharedCluster(t)
	role, err := c.admin.RbacV1().ClusterRoles().Get(t.Context(), "topodra", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var tested []string
	for g := range requests {
		tested = append(tested, g)
	}
	slices.Sort(tested)
	if diff := cmp.Diff(tested, grants(role.Rules)); diff != "" {
		t.Errorf("verbs with a request (-) and verbs of the role (+) differ:\n%s", diff)
	}
	for i, g := range tested {
		t.Run(g, func(t *testing.T) {
			if err := requests[g](t.Context(), t, c, c.as(ownNode)); err != nil {
				t.Errorf("with the role: %v", err)
			}
			less := c.accountWithRole(t, fmt.Sprintf("without-%d", i), without(role.Rules, g))
			if err := requests[g](t.Context(), t, c, less); err == nil {
				t.Error("works without the verb: the role grants too much")
			} else if !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("without the verb: got %v, want it forbidden", err)
			}
		})
	}
}

// TestNothingElseIsAllowed asks the API server about every verb on every resource that it serves.
func TestNothingElseIsAllowed(t *testing.T) {
	c := sharedCluster(t)
	ctx := t.Context()
	lists, err := discovery.ServerPreferredResources(c.admin.Discovery())
	if err != nil {
		t.Fatal(err)
	}
	// The preferred resources lack the subresources.
	_, all, err := c.admin.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	verbs := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	nobody := kubernetes.NewForConfigOrDie(c.server.As(workloads+"/nobody", ownNode))
	var got []string
	asked := map[string]bool{}
	for _, list := range append(lists, all...) {
		group, _, found := strings.Cut(list.GroupVersion, "/")
		if !found {
			group = ""
		}
		for _, resource := range list.APIResources {
			for _, verb := range verbs {
				g := grant(group, resource.Name, verb)
				if asked[g] {
					continue
				}
				asked[g] = true
				name, subresource, _ := strings.Cut(resource.Name, "/")
				review := &authorizationv1.SelfSubjectAccessReview{}
				review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: workloads, Group: group, Resource: name, Subresource: subresource, Verb: verb}
				// What every authenticated user may do, such as asking this, is not the chart's.
				if allowed(ctx, t, c.as(ownNode), review) && !allowed(ctx, t, nobody, review) {
					got = append(got, g)
				}
			}
		}
	}
	if len(asked) < 500 {
		t.Errorf("asked about %d verbs only: discovery gave too little", len(asked))
	}
	var want []string
	for g := range requests {
		if !strings.Contains(g, "resourceclaims/driver") { // no resource that is served
			want = append(want, g)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wanted (-) and allowed (+) differ:\n%s", diff)
	}
	for _, resource := range []string{driver, otherDriver} {
		for _, verb := range []string{"associated-node:update", "associated-node:patch", "arbitrary-node:update", "arbitrary-node:patch"} {
			review := &authorizationv1.SelfSubjectAccessReview{}
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Namespace: workloads, Group: "resource.k8s.io", Resource: "resourceclaims", Subresource: "driver", Name: resource, Verb: verb}
			want := resource == driver && verb == "associated-node:update"
			if got := allowed(ctx, t, c.as(ownNode), review); got != want {
				t.Errorf("%s on resourceclaims/driver %s: allowed is %t, want %t", verb, resource, got, want)
			}
		}
	}
}

// TestForbiddenRequests makes some of the requests that matter most, so that the proof does not rest on access reviews alone.
func TestForbiddenRequests(t *testing.T) {
	c := sharedCluster(t)
	pod := c.ownPod(t)
	client := c.as(ownNode)
	empty := []byte(`{}`)
	tests := map[string]func(ctx context.Context) error{
		"list claims": func(ctx context.Context) error {
			_, err := client.ResourceV1().ResourceClaims(workloads).List(ctx, metav1.ListOptions{})
			return err
		},
		"patch a claim": func(ctx context.Context) error {
			_, err := client.ResourceV1().ResourceClaims(workloads).Patch(ctx, c.ownClaim(t), types.MergePatchType, empty, metav1.PatchOptions{})
			return err
		},
		"delete all slices": func(ctx context.Context) error {
			return client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + ownNode})
		},
		"get a secret": func(ctx context.Context) error {
			_, err := client.CoreV1().Secrets(release).Get(ctx, "s", metav1.GetOptions{})
			return err
		},
		"patch its node": func(ctx context.Context) error {
			_, err := client.CoreV1().Nodes().Patch(ctx, ownNode, types.MergePatchType, empty, metav1.PatchOptions{})
			return err
		},
		"list pods": func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(workloads).List(ctx, metav1.ListOptions{})
			return err
		},
		"delete a pod": func(ctx context.Context) error {
			return client.CoreV1().Pods(workloads).Delete(ctx, pod, metav1.DeleteOptions{})
		},
		"patch a pod's status": func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(workloads).Patch(ctx, pod, types.MergePatchType, empty, metav1.PatchOptions{}, "status")
			return err
		},
		"add a debug container": func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(workloads).Patch(ctx, pod, types.MergePatchType, empty, metav1.PatchOptions{}, "ephemeralcontainers")
			return err
		},
	}
	for name, request := range tests {
		t.Run(name, func(t *testing.T) {
			if err := request(t.Context()); !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want it forbidden", err)
			}
		})
	}
}

// accountWithRole returns a client of a new service account on the agent's node that has rules.
func (c *cluster) accountWithRole(t *testing.T, name string, rules []rbacv1.PolicyRule) kubernetes.Interface {
	t.Helper()
	ctx := t.Context()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := c.admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: workloads, Name: name}},
	}
	if _, err := c.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(c.server.As(workloads+"/"+name, ownNode))
	// Every such role keeps at least one of these.
	reviews := []*authorizationv1.SelfSubjectAccessReview{{}, {}}
	reviews[0].Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Resource: "nodes", Verb: "get"}
	reviews[1].Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{Resource: "events", Verb: "patch", Namespace: workloads}
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		return allowed(ctx, t, client, reviews[0]) || allowed(ctx, t, client, reviews[1]), nil
	})
	if err != nil {
		t.Fatalf("role %s takes no effect: %v", name, err)
	}
	return client
}

func allowed(ctx context.Context, t *testing.T, client kubernetes.Interface, review *authorizationv1.SelfSubjectAccessReview) bool {
	t.Helper()
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// grants lists what rules allow, sorted.
func grants(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, grant(group, resource, verb))
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// without returns rules less one grant. Each rule of the role has one group and one resource.
func without(rules []rbacv1.PolicyRule, less string) []rbacv1.PolicyRule {
	var rest []rbacv1.PolicyRule
	for _, rule := range rules {
		rule := *rule.DeepCopy()
		rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool {
			return grant(rule.APIGroups[0], rule.Resources[0], verb) == less
		})
		if len(rule.Verbs) > 0 {
			rest = append(rest, rule)
		}
	}
	return rest
}
