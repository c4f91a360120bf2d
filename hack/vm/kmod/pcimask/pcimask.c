// SPDX-License-Identifier: GPL-2.0
/*
 * pcimask: show PCI functions under other ids, in sysfs and in config space.
 *
 *   insmod pcimask.ko map=0000:13:00.0=10de:2330:030200:10de:16c1,...
 *
 * Each entry is ADDRESS=VENDOR:DEVICE:CLASS:SUBSYSTEM_VENDOR:SUBSYSTEM_DEVICE, in hexadecimal.
 *
 * For a test guest only. Load it after the drivers have bound: a bound driver stays bound, and one that
 * comes later would not recognize its device. A virtual function takes its vendor from its physical
 * function (drivers/pci/iov.c), so one that is made later shows the vendor set here.
 * The module cannot be unloaded: the config space accessors of the bus go through it.
 */
#include <linux/module.h>
#include <linux/pci.h>

#define MAX_MASKS 64

struct mask {
	struct pci_dev *pdev;
	struct pci_ops *bus_ops; /* of the bus before the first mask on it */
	u32 id, class, subsystem;
};

static char *map[MAX_MASKS];
static int map_count;
module_param_array(map, charp, &map_count, 0444);

static struct mask masks[MAX_MASKS];
static int mask_count;

static struct mask *first_on(struct pci_bus *bus)
{
	int i;

	for (i = 0; i < mask_count; i++)
		if (masks[i].pdev->bus == bus)
			return &masks[i];
	return NULL;
}

static struct mask *mask_of(struct pci_bus *bus, unsigned int devfn)
{
	int i;

	for (i = 0; i < mask_count; i++)
		if (masks[i].pdev->bus == bus && masks[i].pdev->devfn == devfn)
			return &masks[i];
	return NULL;
}

static int masked_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *val)
{
	struct pci_ops *ops = first_on(bus)->bus_ops;
	struct mask *m = mask_of(bus, devfn);
	u32 word;
	int err;

	if (!m)
		return ops->read(bus, devfn, where, size, val);
	switch (where & ~3) {
	case PCI_VENDOR_ID:
		word = m->id;
		break;
	case PCI_CLASS_REVISION: /* its lowest byte is the revision, which stays */
		err = ops->read(bus, devfn, PCI_CLASS_REVISION, 4, &word);
		if (err)
			return err;
		word = (word & 0xff) | m->class << 8;
		break;
	case PCI_SUBSYSTEM_VENDOR_ID:
		word = m->subsystem;
		break;
	default:
		return ops->read(bus, devfn, where, size, val);
	}
	word >>= (where & 3) * 8;
	*val = size == 4 ? word : word & ((1U << size * 8) - 1);
	return 0;
}

static int masked_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 val)
{
	return first_on(bus)->bus_ops->write(bus, devfn, where, size, val);
}

/* x86's pci_root_ops, which these replace, have no other members. */
static struct pci_ops masked_ops = { .read = masked_read, .write = masked_write };

struct ids {
	unsigned int vendor, device, class, subvendor, subdevice;
};

static struct pci_dev *parse(const char *entry, struct ids *ids)
{
	unsigned int domain, bus, slot, function;

	if (sscanf(entry, "%x:%x:%x.%x=%x:%x:%x:%x:%x", &domain, &bus, &slot, &function, &ids->vendor,
		   &ids->device, &ids->class, &ids->subvendor, &ids->subdevice) != 9) {
		pr_err("pcimask: cannot read '%s'\n", entry);
		return NULL;
	}
	return pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
}

static void apply(struct pci_dev *pdev, const struct ids *ids)
{
	struct mask *first = first_on(pdev->bus);

	masks[mask_count] = (struct mask){
		.pdev = pdev,
		.bus_ops = first ? first->bus_ops : pdev->bus->ops,
		.id = ids->vendor | ids->device << 16,
		.class = ids->class,
		.subsystem = ids->subvendor | ids->subdevice << 16,
	};
	mask_count++;
	if (!first)
		pci_bus_set_ops(pdev->bus, &masked_ops);
	/* sysfs shows what the kernel read when it found the function */
	pdev->vendor = ids->vendor;
	pdev->device = ids->device;
	pdev->class = ids->class;
	pdev->subsystem_vendor = ids->subvendor;
	pdev->subsystem_device = ids->subdevice;
}

static int __init pcimask_init(void)
{
	static struct pci_dev *pdevs[MAX_MASKS] __initdata;
	static struct ids ids[MAX_MASKS] __initdata;
	int i;

	/* all or nothing: after the first change there is no way back */
	for (i = 0; i < map_count; i++) {
		pdevs[i] = parse(map[i], &ids[i]);
		if (!pdevs[i]) {
			pr_err("pcimask: no PCI function for '%s'\n", map[i]);
			while (i--)
				pci_dev_put(pdevs[i]);
			return -EINVAL;
		}
	}
	for (i = 0; i < map_count; i++)
		apply(pdevs[i], &ids[i]);
	return 0;
}

module_init(pcimask_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Show PCI functions under other ids");
