#!/usr/bin/env python3
"""patch_rxe.py FOLDER: edits the source of Linux 6.12's drivers/infiniband/sw/rxe so that soft-RoCE behaves as a
hardware RoCE NIC does where discovery and network namespaces are concerned:

1. The RDMA device is below the PCI function of its network interface, not in devices/virtual.
2. It stays when its interface moves to another network namespace (stock rxe takes that for an unregistration).
3. RoCE's UDP port is open, and routes are looked up, in every network namespace, not in the first alone.
4. "rdma dev set NAME netns NS" works: the core asks for disassociate_ucontext. Hardware drivers zap the mapped
   doorbell pages there; rxe has no such pages.
5. QP1, which rdma_cm needs, can be made again when the move registers the device anew.

What stays unlike hardware: no ports/N/counters (no software driver has them), and netdev bytes count RDMA packets too.
Each edit must fit exactly once, so a source that has changed stops the build.
"""

import os
import sys


def read(name):
    with open(os.path.join(sys.argv[1], name)) as f:
        return f.read()


def write(name, text):
    with open(os.path.join(sys.argv[1], name), "w") as f:
        f.write(text)


def edit(text, *edits):
    for old, new in edits:
        if text.count(old) != 1:
            sys.exit(f"patch_rxe.py: {text.count(old)} places instead of 1 for: {old.strip()!r}")
        text = text.replace(old, new)
    return text


PARENT = """\
	if (ndev->dev.parent)
		dev->dev.parent = ndev->dev.parent;
	dev->local_dma_lkey = 0;
"""

DISASSOCIATE = """\
static void rxe_disassociate_ucontext(struct ib_ucontext *ibuc)
{
}

static void rxe_dealloc_ucontext("""

GSI_AGAIN = """\
	if (qp_type(qp) == IB_QPT_GSI)
		to_rdev(ibqp->device)->port.qp_gsi_index = 0;
	err = rxe_qp_chk_destroy(qp);
"""

SOCKETS_OF = """\
#include <net/net_namespace.h>
#include <net/netns/generic.h>

static unsigned int rxe_pernet_id;

static struct rxe_recv_sockets *rxe_sockets(struct net *net)
{
	return net_generic(net, rxe_pernet_id);
}
"""

# unregister_netdevice leaves reg_state at NETREG_REGISTERED only while the interface moves to another namespace.
ONLY_MOVING = """\
	case NETDEV_UNREGISTER:
		if (ndev->reg_state == NETREG_REGISTERED)
			break;
"""

PERNET = """\
static int __net_init rxe_pernet_init(struct net *net)
{
	struct rxe_recv_sockets *sockets = rxe_sockets(net);

	sockets->sk4 = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), false);
	if (IS_ERR(sockets->sk4)) {
		sockets->sk4 = NULL;
		return -EADDRINUSE;
	}
	sockets->sk6 = rxe_setup_udp_tunnel(net, htons(ROCE_V2_UDP_DPORT), true);
	if (IS_ERR(sockets->sk6)) /* a kernel without IPv6 */
		sockets->sk6 = NULL;
	return 0;
}

static void __net_exit rxe_pernet_exit(struct net *net)
{
	rxe_release_udp_tunnel(rxe_sockets(net)->sk6);
	rxe_release_udp_tunnel(rxe_sockets(net)->sk4);
}

static struct pernet_operations rxe_pernet_ops = {
	.init = rxe_pernet_init,
	.exit = rxe_pernet_exit,
	.id = &rxe_pernet_id,
	.size = sizeof(struct rxe_recv_sockets),
};

void rxe_net_exit(void)
{
	unregister_netdevice_notifier(&rxe_net_notifier);
	unregister_pernet_subsys(&rxe_pernet_ops);
}

int rxe_net_init(void)
{
	int err = register_pernet_subsys(&rxe_pernet_ops);

	if (err)
		return err;
	err = register_netdevice_notifier(&rxe_net_notifier);
	if (err)
		unregister_pernet_subsys(&rxe_pernet_ops);
	return err;
}
"""

write("rxe_verbs.c", edit(
    read("rxe_verbs.c"),
    ("\tdev->local_dma_lkey = 0;\n", PARENT),
    ("static void rxe_dealloc_ucontext(", DISASSOCIATE),
    ("\t.dealloc_ucontext = rxe_dealloc_ucontext,\n",
     "\t.dealloc_ucontext = rxe_dealloc_ucontext,\n\t.disassociate_ucontext = rxe_disassociate_ucontext,\n"),
    ("\terr = rxe_qp_chk_destroy(qp);\n", GSI_AGAIN),
))

net = edit(
    read("rxe_net.c"),
    ("static struct rxe_recv_sockets recv_sockets;\n", SOCKETS_OF),
    ("ip_route_output_key(&init_net, &fl)", "ip_route_output_key(dev_net(ndev), &fl)"),
    ("ipv6_dst_lookup_flow(sock_net(recv_sockets.sk6->sk),\n\t\t\t\t\t       recv_sockets.sk6->sk, &fl6,",
     "ipv6_dst_lookup_flow(dev_net(ndev),\n\t\t\t\t\t       rxe_sockets(dev_net(ndev))->sk6->sk, &fl6,"),
    ("\tcase NETDEV_UNREGISTER:\n", ONLY_MOVING),
)
# from here to its end the file opens and closes the sockets of the first namespace
first_only = "static int rxe_net_ipv4_init(void)"
write("rxe_net.c", edit(net, (first_only, first_only)).partition(first_only)[0] + PERNET)
