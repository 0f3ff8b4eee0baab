"""The scripts of Ray's documentation: those of Ray core's guides and walkthroughs, and of Ray Tune's."""

from __future__ import annotations

from tests.compat.peers.base import Example, System, write_alone
from tests.compat.peers.ray_tune import DIGITS, TENSORFLOW, digits

GRAPHS = {"gap": "trainkit has no compiled graphs", "error": "No module named 'trainkit.dag'"}
GPUS = "needs GPUs"
PRIVATE = "imports modules that are private to Ray"
REFUSED = "asks for what the machine never has: trainkit refuses that at once, and Ray waits"
QUIETLY = """
actor-pool actor-queue actor-repr actor-sync actor_checkpointing actor_creator_failure actor_restart
anti_pattern_closure_capture_large_objects anti_pattern_fork_new_processes anti_pattern_global_variables
anti_pattern_nested_ray_get anti_pattern_pass_large_arg_by_value anti_pattern_ray_get_loop
anti_pattern_ray_get_submission_order anti_pattern_ray_get_too_many_objects
anti_pattern_redefine_task_actor_loop anti_pattern_return_ray_put anti_pattern_too_fine_grained_tasks
anti_pattern_unnecessary_ray_get deser get_or_create getting_started limit_pending_tasks limit_running_tasks
monte_carlo_pi nested-tasks obj_capture obj_ref obj_val original_resource_unavailable_example owners
pattern_async_actor pattern_generators pattern_nested_tasks pattern_pipelining pattern_tree_of_actors
placement_group_capture_child_tasks_example placement_group_example resources scheduling task_exceptions
tasks_fault_tolerance
""".split()
"""Scripts of Ray core that run, without a word about them."""


def gap(name: str, reason: str, error: str) -> Example:
    return Example(name, gap=reason, error=error)


CORE = System(
    title="Ray core's guides",
    words="The scripts of `doc/source/ray-core/doc_code` in Ray's repository.",
    write=write_alone,
    folder="doc/source/ray-core/doc_code",
    examples=tuple(
        sorted(
            (
                *(Example(f"{name}.py") for name in QUIETLY),
                gap(
                    "actor-http-server.py",
                    "has an `async def __init__`",
                    "should return None, not 'coroutine'",
                ),
                gap("actors.py", "asks `RuntimeContext.is_canceled()`", "no attribute 'is_canceled'"),
                gap(
                    "anti_pattern_out_of_band_object_ref_serialization.py",
                    PRIVATE,
                    "module named 'trainkit._private'",
                ),
                Example("cgraph_nccl.py", needs=GPUS),
                Example("cgraph_overlap.py", needs=GPUS),
                Example("cgraph_profiling.py", needs=f"{GPUS}, and installs a package"),
                Example("cgraph_quickstart.py", **GRAPHS),
                Example("cgraph_troubleshooting.py", **GRAPHS),
                Example("cgraph_visualize.py", **GRAPHS),
                Example("cross_language.py", needs="needs Java, and a cluster of Ray's that runs its code"),
                gap(
                    "direct_transport_gloo.py",
                    "gives a method's `tensor_transport`",
                    "keyword argument 'tensor_tr",
                ),
                Example("direct_transport_nccl.py", needs=GPUS),
                Example("direct_transport_nixl.py", needs="needs NIXL, and a network that it knows"),
                gap("fault_tolerance_tips.py", REFUSED, "InfeasibleError"),
                gap("generator.py", '`num_returns="dynamic"`', "name 'DynamicObjectRefGenerator'"),
                Example("namespaces.py", needs="connects to a cluster by `ray://localhost:10001`"),
                gap(
                    "object_ref_serialization.py",
                    "pickles a reference by hand, and frees it by a private function",
                    "not pickled by hand",
                ),
                gap("ray-dag.py", "`bind` of a remote function", "no attribute 'bind'"),
                Example("ray_oom_prevention.py", needs="fills the memory of the machine"),
                Example("runtime_env_example.py", needs="installs packages by pip"),
                gap("streaming_generator.py", "`ray.wait` of generators", "wait\\(\\) takes references"),
                gap("tasks.py", REFUSED, "InfeasibleError"),
                gap("tqdm.py", "`ray.experimental.tqdm_ray`", "No module named 'trainkit.experimental'"),
            ),
            key=lambda example: example.name,
        )
    ),
)

TUNE = System(
    title="Ray Tune's guides",
    words="The scripts of `doc/source/tune/doc_code` in Ray's repository.",
    write=write_alone,
    folder="doc/source/tune/doc_code",
    examples=(
        Example("faq.py", **TENSORFLOW),
        Example("fault_tolerance.py"),
        Example("keras_hyperopt.py", needs="needs Keras", error="No module named 'keras'"),
        Example("key_concepts.py"),
        Example("pytorch_optuna.py", prepare=digits, note=DIGITS),
        Example("stopping.py"),
        Example("trainable.py"),
        Example("trial_checkpoint.py"),
        Example("tune.py"),
    ),
)
