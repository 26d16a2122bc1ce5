// Print what regions hold, one JSON object a line, through the C library.
//
//	go run read_region.go FILE...
package main

/*
#cgo pkg-config: libhamiregion
#include <stdlib.h>
#include <region.h>
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"unsafe"
)

func quoted(uuid *C.char) string {
	text := C.GoString(uuid)
	if text == "" {
		return "null"
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

func orNull(isThere bool, value uint64) string {
	if !isThere {
		return "null"
	}
	return fmt.Sprint(value)
}

func shown(snapshot *C.struct_hr_snapshot) []C.uint32_t {
	var devices []C.uint32_t
	for device := C.uint32_t(0); device < snapshot.span; device++ {
		if snapshot.shown>>device&1 != 0 {
			devices = append(devices, device)
		}
	}
	return devices
}

func deviceText(snapshot *C.struct_hr_snapshot, index C.uint32_t) string {
	device := C.hr_snapshot_device(snapshot, index)
	limit, smLimit := uint64(device.limit), uint64(device.sm_limit)
	return fmt.Sprintf(`{"index": %d, "uuid": %s, "memory_limit_bytes": %s, `+
		`"memory_used_bytes": %d, "sm_limit_percent": %s, "sm_util_percent": %d}`,
		index, quoted(&device.uuid[0]), orNull(limit != 0, limit), device.sums.total,
		orNull(smLimit > 0 && smLimit < 100, smLimit), device.sums.sm)
}

func processText(snapshot *C.struct_hr_snapshot, index C.uint32_t) string {
	process := C.hr_snapshot_process(snapshot, index)
	var used []string
	for _, device := range shown(snapshot) {
		used = append(used, fmt.Sprint(C.hr_snapshot_usage(snapshot, index, device).total))
	}
	hostPid := "null"
	if process.host_pid != 0 {
		hostPid = fmt.Sprint(process.host_pid)
	}
	return fmt.Sprintf(`{"pid": %d, "host_pid": %s, "status": %d, "memory_used_bytes": [%s]}`,
		process.pid, hostPid, process.status, strings.Join(used, ", "))
}

func snapshotText(snapshot *C.struct_hr_snapshot) string {
	layouts := (*[C.HR_LAYOUTS]C.struct_hr_layout)(unsafe.Pointer(&C.hr_layouts))
	var devices, processes []string
	for _, device := range shown(snapshot) {
		devices = append(devices, deviceText(snapshot, device))
	}
	for index := C.int32_t(0); index < snapshot.proc_num; index++ {
		processes = append(processes, processText(snapshot, C.uint32_t(index)))
	}
	return fmt.Sprintf(`{"layout": "%s", "settled": %t, "priority": %d, "owner_pid": %d, `+
		`"devices": [%s], "processes": [%s]}`,
		C.GoString(layouts[snapshot.layout].name), snapshot.settled != 0, snapshot.priority,
		snapshot.owner_pid, strings.Join(devices, ", "), strings.Join(processes, ", "))
}

// The buffer is C's: the garbage collector neither moves nor frees it.
func readRegion(path string, buffer unsafe.Pointer) (string, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	// In C's memory too, because the library stores a pointer there.
	region := (**C.hr_region)(C.calloc(1, C.size_t(unsafe.Sizeof(uintptr(0)))))
	defer C.free(unsafe.Pointer(region))
	code := C.hr_open(name, C.HR_READ, C.HR_LAYOUTS, region)
	defer C.hr_free_held(region)
	if code >= 0 {
		code = C.hr_snapshot(*region, buffer, C.HR_SNAPSHOT_MAX_BYTES)
	}
	if code < 0 {
		return "", fmt.Errorf("%s: error %d (enum hr_code)", path, code)
	}
	return snapshotText((*C.struct_hr_snapshot)(buffer)), nil
}

func main() {
	buffer := C.malloc(C.HR_SNAPSHOT_MAX_BYTES)
	defer C.free(buffer)
	for _, path := range os.Args[1:] {
		text, err := readRegion(path, buffer)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(text)
	}
}
