// Command hyper is all programs of a Kubernetes control plane and node in one binary: kube-apiserver,
// kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl and etcd. Linking is the slow part of their
// build, and they share most of their code. It acts by the name it is called by, or by its first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata"

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectlcmd "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

const usage = "usage: hyper etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|kubectl ..."

func main() {
	if filepath.Base(os.Args[0]) == "hyper" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
	}
	var command *cobra.Command
	switch filepath.Base(os.Args[0]) {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kubectl":
		// kubectl logs before it parses its flags.
		if _, err := logs.GlogSetter(kubectlcmd.GetLogVerbosity(os.Args)); err != nil {
			fmt.Fprintln(os.Stderr, "kubectl: set log verbosity:", err)
			os.Exit(1)
		}
		util.CheckErr(cli.RunNoErrOutput(kubectlcmd.NewDefaultKubectlCommand()))
		return
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = kcm.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kube-proxy":
		command = proxy.NewProxyCommand()
	case "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
