"""The scripts of Ray's documentation: those of Ray core's walkthroughs, and of Ray Tune's guides."""

from __future__ import annotations

from tests.plugins.compat.peers.base import Example, System, quietly, write_alone
from tests.plugins.compat.peers.ray_tune import DIGITS, TENSORFLOW, digits

GPUS = "needs GPUs"
QUIETLY = """
actor-http-server actor-pool actor-queue actor-repr actor-sync actor_checkpointing actor_creator_failure
actor_restart actors anti_pattern_closure_capture_large_objects anti_pattern_fork_new_processes
anti_pattern_global_variables anti_pattern_nested_ray_get
anti_pattern_out_of_band_object_ref_serialization anti_pattern_pass_large_arg_by_value
anti_pattern_ray_get_loop anti_pattern_ray_get_submission_order anti_pattern_ray_get_too_many_objects
anti_pattern_redefine_task_actor_loop anti_pattern_return_ray_put anti_pattern_too_fine_grained_tasks
anti_pattern_unnecessary_ray_get cgraph_quickstart cgraph_troubleshooting deser fault_tolerance_tips
generator get_or_create getting_started limit_pending_tasks limit_running_tasks monte_carlo_pi
nested-tasks obj_capture obj_ref obj_val object_ref_serialization original_resource_unavailable_example
owners pattern_async_actor pattern_generators pattern_nested_tasks pattern_pipelining
placement_group_capture_child_tasks_example placement_group_example ray-dag
resources scheduling streaming_generator task_exceptions tasks tasks_fault_tolerance tqdm
"""

CORE = System(
    title="Ray core's walkthroughs",
    words="The table lists the scripts of `doc/source/ray-core/doc_code` in Ray's repository.",
    write=write_alone,
    folder="doc/source/ray-core/doc_code",
    examples=(
        *quietly(QUIETLY),
        Example(
            "pattern_tree_of_actors.py",
            changes={"import ray\n": "import ray\nray.init(num_cpus=8)\n"},
            note="`init(num_cpus=8)` before it, as its actors hold 8 CPUs at a time",
        ),
        Example("cgraph_nccl.py", needs=GPUS),
        Example("cgraph_visualize.py", needs="needs the program `dot` of Graphviz"),
        Example("cgraph_overlap.py", needs=GPUS),
        Example("cgraph_profiling.py", needs=f"{GPUS}, and installs a package"),
        Example("cross_language.py", needs="needs Java, and a cluster of Ray's that runs its code"),
        Example(
            "direct_transport_gloo.py",
            gap="gives a method's `tensor_transport`, and waits until Ray has let go of a tensor: "
            "here tensors travel by shared memory, and there is no transport to choose",
            error="keyword argument 'tensor_tr",
        ),
        Example("direct_transport_nccl.py", needs=GPUS),
        Example("direct_transport_nixl.py", needs="needs NIXL, and a network that it knows"),
        Example(
            "namespaces.py",
            needs="starts a cluster by `ray start`, and connects by `ray://`, for `ray[client]`",
        ),
        Example("ray_oom_prevention.py", needs="fills the memory of the machine"),
        Example("runtime_env_example.py", needs="installs packages by pip"),
    ),
)

TUNE = System(
    title="Ray Tune's guides",
    words="The table lists the scripts of `doc/source/tune/doc_code` in Ray's repository.",
    write=write_alone,
    folder="doc/source/tune/doc_code",
    examples=(
        Example("faq.py", **TENSORFLOW),
        Example("fault_tolerance.py"),
        Example("keras_hyperopt.py", needs="needs Keras"),
        Example("key_concepts.py"),
        Example("pytorch_optuna.py", prepare=digits, note=DIGITS),
        Example("stopping.py", failed_trials=1, note="one trial fails on purpose"),
        Example("trainable.py"),
        Example("trial_checkpoint.py"),
        Example("tune.py", gap="reports `...`, which is no metric: its trials fail", error="other_data"),
    ),
)
